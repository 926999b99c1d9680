-- get_next_delay_task: read
-- Says how long the scheduler may sleep. A level with a key of a wrong type is ignored, as in
-- process_delay_message.
-- Returns  the ms until the next due time, 0: something is due, -1: nothing is delayed
-- Cost     O(1)
-- keys: pending* | delay_tasks*

-- use: clock

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
return earliest == math.huge and -1 or math.max(0, math.ceil(earliest - now))
