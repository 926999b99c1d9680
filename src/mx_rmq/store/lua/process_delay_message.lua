-- process_delay_message: delayed -> pending
--
-- Moves what is due, at most max_count of each level and the earliest first, behind those that
-- are pending. An id without a record is dropped and counted. A level with a key of a wrong type
-- is passed over; the others go on.
--
-- Returns  the ids it moved
-- Cost     O(log D) a message, D delayed

local payload          = KEYS[1]  -- HASH  id -> record
local pending_high     = KEYS[2]  -- LIST  ids, newest first
local pending          = KEYS[3]  -- LIST  ids, newest first
local pending_low      = KEYS[4]  -- LIST  ids, newest first
local delay_tasks_high = KEYS[5]  -- ZSET  id -> due (ms)
local delay_tasks      = KEYS[6]  -- ZSET  id -> due (ms)
local delay_tasks_low  = KEYS[7]  -- ZSET  id -> due (ms)
local doorbell         = KEYS[8]  -- LIST  at most one ring: something is pending
local meta             = KEYS[9]  -- HASH  token, turn, paused, dropped, tick
local totals           = KEYS[10] -- HASH  how many messages ever went which way
local history          = KEYS[11] -- STREAM  what has happened, newest last

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local max_count = tonumber(ARGV[2]) -- how many of each level at the most
local remember  = ARGV[3]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local moves, moved, dropped = {}, {}, 0
local levels = {
  {delay_tasks_high, pending_high}, {delay_tasks, pending}, {delay_tasks_low, pending_low},
}
for _, level in ipairs(levels) do
  local due = redis.pcall('ZRANGEBYSCORE', level[1], '-inf', now, 'LIMIT', 0, max_count)
  local length = redis.pcall('LLEN', level[2])
  if #due > 0 and type(length) == 'number' then
    local behind = {}
    for _, id in ipairs(due) do
      if redis.call('HEXISTS', payload, id) == 1 then
        behind[#behind + 1] = id
        moved[#moved + 1] = id
      else
        dropped = dropped + 1
      end
    end
    moves[#moves + 1] = {level[1], level[2], due, behind}
  end
end
local rung = redis.call('LLEN', doorbell)
local dropped_before = tonumber(redis.call('HGET', meta, 'dropped')) or 0

for _, move in ipairs(moves) do
  local delayed, waiting, due, behind = unpack(move)
  redis.call('ZREM', delayed, unpack(due))
  if #behind > 0 then redis.call('LPUSH', waiting, unpack(behind)) end
end
if dropped > 0 then redis.call('HSET', meta, 'dropped', dropped_before + dropped) end
if #moved > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end
local what, by, done, about = 'due', '', moved, nil

-- shared: count what has happened, and write it down; that this fails is no reason to fail
if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
-- end

return moved
