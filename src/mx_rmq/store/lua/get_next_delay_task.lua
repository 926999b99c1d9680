-- get_next_delay_task: read
--
-- Tells the scheduler how long it may sleep. A level with a key of a wrong type does not count:
-- process_delay_message passes it over, too.
--
-- Returns  -1 nothing is delayed, 0 something is due now, else the ms until the next due time
-- Cost     O(1)

local pending_high     = KEYS[1]  -- LIST  ids, newest first
local pending          = KEYS[2]  -- LIST  ids, newest first
local pending_low      = KEYS[3]  -- LIST  ids, newest first
local delay_tasks_high = KEYS[4]  -- ZSET  id -> due (ms)
local delay_tasks      = KEYS[5]  -- ZSET  id -> due (ms)
local delay_tasks_low  = KEYS[6]  -- ZSET  id -> due (ms)

local now_ms = ARGV[1] -- the time (ms), or '' for the server's

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local levels = {
  {delay_tasks_high, pending_high}, {delay_tasks, pending}, {delay_tasks_low, pending_low},
}
local earliest = math.huge
for _, level in ipairs(levels) do
  local first = redis.pcall('ZRANGE', level[1], 0, 0, 'WITHSCORES')
  local length = redis.pcall('LLEN', level[2])
  if first[2] and type(length) == 'number' then
    earliest = math.min(earliest, tonumber(first[2]))
  end
end
if earliest == math.huge then return -1 end
return math.max(0, math.ceil(earliest - now))
