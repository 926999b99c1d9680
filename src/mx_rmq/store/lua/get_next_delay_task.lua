-- get_next_delay_task: read
--
-- Tells the scheduler how long it may sleep.
--
-- Returns  -1 nothing is delayed, 0 something is due now, else the ms until the next due time
-- Cost     O(1)

local delay_tasks_high = KEYS[1]  -- ZSET  id -> due (ms)
local delay_tasks      = KEYS[2]  -- ZSET  id -> due (ms)
local delay_tasks_low  = KEYS[3]  -- ZSET  id -> due (ms)

local now_ms = ARGV[1] -- the time (ms), or '' for the server's

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local earliest = math.huge
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then earliest = math.min(earliest, tonumber(first[2])) end
end
if earliest == math.huge then return -1 end
return math.max(0, math.ceil(earliest - now))
