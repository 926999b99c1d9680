-- process_delay_message: delayed -> pending
-- Moves what is due behind the pending messages, or into the line of its key, earliest first. An id
-- without a record is dropped and counted. A level with a key of a wrong type is skipped.
-- Returns  the ids it moved
-- Cost     O(log D) per message, D delayed
-- keys: payload | pending* | delay_tasks* | lines ring blocked keyed running
-- keys: waiting awaited | doorbell meta | totals history

local max_count = tonumber(ARGV.max_count) -- how many of each level at most
-- use: clock, history

local moves, moved, dropped, gone = {}, {}, 0, {}
local any_keyed = redis.pcall('HLEN', keyed)
any_keyed = type(any_keyed) == 'number' and any_keyed > 0
local joining, wake, held_lines, plain = {}, true, {}, 0
local levels = {
  {delay_tasks_high, pending_high}, {delay_tasks, pending}, {delay_tasks_low, pending_low},
}
for _, level in ipairs(levels) do
  local due = redis.pcall('ZRANGEBYSCORE', level[1], '-inf', now, 'LIMIT', 0, max_count)
  local length = redis.pcall('LLEN', level[2])
  if #due > 0 and type(length) == 'number' then
    local behind = {}
    for _, id in ipairs(due) do
      local place = any_keyed and redis.call('HGET', keyed, id)
      if redis.call('HEXISTS', payload, id) == 1 then
        moved[#moved + 1] = id
        local key, rest = string.match(place or '', '^(.-)(\t.*)$')
        if key and key ~= '' then
          local last = #joining
          joining[last + 1], joining[last + 2], joining[last + 3] = id, key, rest
          held_lines[#held_lines + 1] = place .. id
        else
          behind[#behind + 1], plain = id, plain + 1
        end
      else
        dropped = dropped + 1
        if place then
          gone[#gone + 1] = id
          held_lines[#held_lines + 1] = place .. id
        end
      end
    end
    moves[#moves + 1] = {level[1], level[2], due, behind}
  end
end
-- use: line_ends
redis.call('ZCARD', running)
local waits_end = {}
if redis.call('ZCARD', waiting) > 0 then
  redis.call('ZCARD', awaited)
  for _, move in ipairs(moves) do
    for _, id in ipairs(move[3]) do
      if redis.call('ZSCORE', waiting, id) then waits_end[#waits_end + 1] = id end
    end
  end
end
local rung, closed = redis.call('LLEN', doorbell), redis.call('ZSCORE', blocked, '')
local dropped_before = tonumber(redis.call('HGET', meta, 'dropped')) or 0

for _, move in ipairs(moves) do
  local delayed, list, due, behind = unpack(move)
  redis.call('ZREM', delayed, unpack(due))
  if #behind > 0 then redis.call('LPUSH', list, unpack(behind)) end
end
if dropped > 0 then redis.call('HSET', meta, 'dropped', dropped_before + dropped) end
if #gone > 0 then redis.call('HDEL', keyed, unpack(gone)) end
-- use: end_waits
if #held_lines > 0 then redis.call('ZREM', running, unpack(held_lines)) end
-- use: join_lines
if (plain > 0 or ready) and not closed and rung == 0 then redis.call('RPUSH', doorbell, '1') end
note('due', '', moved)
return moved
