-- count_messages: read
--
-- How many messages of a topic are in which state, all of one moment.
--
-- Returns  pending, delayed, processing, dead, quarantined, then 1 if the topic is paused, how many
--          ids without a message were ever dropped, for how long the first delayed message has been
--          due and the first lease has been over (ms, -1: none is), and a list: what happened, to
--          how many, ever
-- Cost     O(log N), N delayed or in processing

local pending_high      = KEYS[1]  -- LIST  ids, newest first
local pending           = KEYS[2]  -- LIST  ids, newest first
local pending_low       = KEYS[3]  -- LIST  ids, newest first
local delay_tasks_high  = KEYS[4]  -- ZSET  id -> due (ms)
local delay_tasks       = KEYS[5]  -- ZSET  id -> due (ms)
local delay_tasks_low   = KEYS[6]  -- ZSET  id -> due (ms)
local processing        = KEYS[7]  -- HASH  id -> lease, token:worker
local dlq               = KEYS[8]  -- ZSET  id -> time of death (ms)
local error_parse_queue = KEYS[9]  -- ZSET  id -> time of quarantine (ms)
local meta              = KEYS[10] -- HASH  token, turn, paused, dropped, tick
local cancelled         = KEYS[11] -- SET  ids of which one place in a pending list does not count
local totals            = KEYS[12] -- HASH  how many messages ever went which way
local expire_monitor    = KEYS[13] -- ZSET  id -> lease deadline (ms)

local now_ms = ARGV[1] -- the time (ms), or '' for the server's

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local waiting, delayed, due = 0, 0, math.huge
local ever = redis.pcall('HGETALL', totals)
for _, key in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', key)
end
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  delayed = delayed + redis.call('ZCARD', key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  due = math.min(due, tonumber(first[2]) or math.huge)
end
local first = redis.call('ZRANGE', expire_monitor, 0, 0, 'WITHSCORES')
local deadline = tonumber(first[2]) or math.huge
waiting = math.max(0, waiting - redis.call('SCARD', cancelled))
return {
  waiting, delayed, redis.call('HLEN', processing), redis.call('ZCARD', dlq),
  redis.call('ZCARD', error_parse_queue), redis.call('HEXISTS', meta, 'paused'),
  tonumber(redis.call('HGET', meta, 'dropped') or 0) or 0,
  due <= now and math.floor(now - due) or -1, deadline <= now and math.floor(now - deadline) or -1,
  ever.err and {} or ever,
}
