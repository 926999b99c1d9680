-- due_types: prove that the sorted sets that get messages are sorted sets.
-- needs: due_times, delay_tasks_high, delay_tasks, delay_tasks_low

if #due_times.high > 0 then redis.call('ZCARD', delay_tasks_high) end
if #due_times.normal > 0 then redis.call('ZCARD', delay_tasks) end
if #due_times.low > 0 then redis.call('ZCARD', delay_tasks_low) end
