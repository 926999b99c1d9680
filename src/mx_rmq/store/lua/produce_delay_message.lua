-- produce_delay_message: (new) -> delayed
-- Stores new messages that wait for their due time: the server's now + delay_ms, or at_ms. Works as
-- produce_normal_message. Rings the scheduler only if one of them is due before all that wait.
--
-- Returns  same as produce_normal_message
-- Cost     O(log D) per message, D delayed
-- keys: payload | pending_high pending pending_low | delay_tasks_high delay_tasks delay_tasks_low
-- keys: cancelled expiry | dlq_payload error_parse_payload | doorbell_delay
-- keys: recent receipt totals history

local dedup_ms    = tonumber(ARGV.dedup_ms)    -- how long a custom id stays taken, 0: not at all
local max_pending = tonumber(ARGV.max_pending) -- cap on waiting messages, 0: none
local each, width = ARGV.each, 5 -- per message: id, how, record, delay_ms, at_ms
-- use: clock, first_answer, history, new_messages

local rung = redis.call('LLEN', doorbell_delay)
local soonest = math.huge
local due_times = {high = {}, normal = {}, low = {}}
for _, i in ipairs(fresh) do
  local due = tonumber(ARGV[i + 4]) or now + tonumber(ARGV[i + 3])
  local level = due_times[priorities[ARGV[i + 1]]]
  level[#level + 1] = due
  level[#level + 1] = ARGV[i]
  soonest = math.min(soonest, due)
end

-- Whether one is due before all of ours: counted, since a producer may not see the ids of others.
local earliest = math.huge
for _, key in ipairs(#fresh > 0 and {delay_tasks_high, delay_tasks, delay_tasks_low} or {}) do
  local before = redis.pcall('ZCOUNT', key, '-inf', soonest)
  if type(before) == 'number' and before > 0 then earliest = soonest end
end

-- use: due_types, admission
if full or #fresh == 0 then
  -- use: receipt
  return answer
end

-- use: store_new, delay

note('delayed', '', stored)
-- use: receipt
return answer
