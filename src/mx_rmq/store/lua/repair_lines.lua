-- repair_lines: repair
-- Fixes what the audit found wrong about the lines of keys, unless it is right by now. `what` says
-- what `member` is. place: of `lines`, for a message whose place is another, or not noted. key: it
-- must have a turn or be blocked while something waits in its line, and otherwise neither. running:
-- of `running`, for a message that is neither in processing nor delayed, or whose place is another.
-- keyed: of `keyed`, for a message that is gone, or that was not replaced.
-- Returns  for each member a code: 0 if it is right, else 1. A place: 1 it is another, 2 it is not
--          noted. A key: 1 it has no turn, 2 it has a turn and is blocked, 3 nothing waits.
--          Running: 1 it is neither in processing nor delayed, 2 its place is another, or not noted
-- Cost     O(log N) per member, N waiting
-- keys: payload | delay_tasks* | lines ring blocked keyed running | processing | doorbell

local dry         = ARGV.dry     -- '1': only say what is wrong
local each, width = ARGV.each, 2 -- per member: what, member

local function leased_or_delayed(id)
  local there = redis.call('HEXISTS', processing, id) == 1
  for _, level in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    there = redis.call('ZSCORE', level, id) or there
  end
  return there
end

local function waits_in(key)
  return redis.call('ZLEXCOUNT', lines, '[' .. key .. '\t', '(' .. key .. '\n')
end

local answer, misplaced, stale, gone, entering = {}, {}, {}, {}, {}
local idle, woken, taken_out, noted, to_note, running_now = {}, {}, {}, {}, {}, {}
local turn = (tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0) + 1
for i = each, #ARGV, width do
  local what, member, code = ARGV[i], ARGV[i + 1], 0
  local key, rest = string.match(member, '^([^\t]*)\t?(.*)$')
  local id = string.match(rest, '^%d+ %d+ (.*)$') or ''
  if what == 'place' then
    local place = noted[id] or redis.call('HGET', keyed, id)
    local waits = redis.call('HEXISTS', payload, id) == 1 and not leased_or_delayed(id)
    if redis.call('ZSCORE', lines, member) and not place and waits then
      code, noted[id] = 2, string.sub(member, 1, #member - #id)
      to_note[#to_note + 1], to_note[#to_note + 2] = id, noted[id]
    elseif redis.call('ZSCORE', lines, member) and not (place and place .. id == member) then
      code, misplaced[#misplaced + 1] = 1, member
      taken_out[key] = (taken_out[key] or 0) + 1
      if waits_in(key) == taken_out[key] then idle[#idle + 1] = key end
    end
  elseif what == 'key' then
    local in_ring, is_blocked = redis.call('ZSCORE', ring, key), redis.call('ZSCORE', blocked, key)
    if waits_in(key) == 0 then
      if in_ring or is_blocked then code, idle[#idle + 1] = 3, key end
    elseif in_ring and is_blocked then
      code, woken[#woken + 1] = 2, key
    elseif not (in_ring or is_blocked) then
      code, entering[#entering + 1], entering[#entering + 2] = 1, turn, key
    end
  elseif what == 'running' then
    local there, place = redis.call('ZSCORE', running, member), redis.call('HGET', keyed, id)
    if there and not leased_or_delayed(id) then
      code, stale[#stale + 1] = 1, member
      if redis.call('ZSCORE', blocked, key) and waits_in(key) > 0 then
        woken[#woken + 1], entering[#entering + 1], entering[#entering + 2] = key, turn, key
      end
    elseif there and not place then
      code, to_note[#to_note + 1] = 2, id
      to_note[#to_note + 1] = string.sub(member, 1, #member - #id)
    elseif there and place .. id ~= member then
      code, stale[#stale + 1] = 2, member
      running_now[#running_now + 1], running_now[#running_now + 2] = '0', place .. id
    end
  elseif redis.call('HEXISTS', keyed, member) == 1 then
    local of = string.match(member, '^!(.*)$')
    local live = redis.call('HEXISTS', payload, member) == 1
    if of then live = string.find(redis.call('HGET', processing, of) or '', ' ', 1, true) end
    if not live then code, gone[#gone + 1] = 1, member end
  end
  answer[#answer + 1] = code
end
local rung = redis.call('LLEN', doorbell)
if dry == '1' then return answer end

redis.call('ZREMRANGEBYRANK', ring, 1, 0) -- removes nothing, but works at maxmemory
if #misplaced > 0 then redis.call('ZREM', lines, unpack(misplaced)) end
if #stale > 0 then redis.call('ZREM', running, unpack(stale)) end
if #running_now > 0 then redis.call('ZADD', running, unpack(running_now)) end
if #to_note > 0 then redis.call('HSET', keyed, unpack(to_note)) end
if #gone > 0 then redis.call('HDEL', keyed, unpack(gone)) end
if #woken > 0 then redis.call('ZREM', blocked, unpack(woken)) end
if #entering > 0 then redis.call('ZADD', ring, unpack(entering)) end
if #idle > 0 then
  redis.call('ZREM', ring, unpack(idle))
  redis.call('ZREM', blocked, unpack(idle))
end
if #entering + #woken > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end
return answer
