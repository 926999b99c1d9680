-- earlier: how many messages are due before ours. They are counted, not listed: a producer may not
-- see the ids of others. Also proves that the sorted sets that get messages are sorted sets.
-- needs: due_times, delay_tasks_high, delay_tasks, delay_tasks_low, soonest, doorbell_delay
-- defines: rung, earlier

local rung, earlier = redis.call('LLEN', doorbell_delay), 0
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  local before = redis.pcall('ZCOUNT', key, '-inf', soonest)
  earlier = earlier + (type(before) == 'number' and before or 0)
end
if #due_times.high > 0 then redis.call('ZCARD', delay_tasks_high) end
if #due_times.normal > 0 then redis.call('ZCARD', delay_tasks) end
if #due_times.low > 0 then redis.call('ZCARD', delay_tasks_low) end
