-- add_delayed: delay the messages; ring the scheduler if one is due before all others.
-- needs: due_times, delay_tasks_high, delay_tasks, delay_tasks_low, earlier, rung, doorbell_delay

if #due_times.high > 0 then redis.call('ZADD', delay_tasks_high, unpack(due_times.high)) end
if #due_times.normal > 0 then redis.call('ZADD', delay_tasks, unpack(due_times.normal)) end
if #due_times.low > 0 then redis.call('ZADD', delay_tasks_low, unpack(due_times.low)) end
if earlier == 0 and rung == 0 then redis.call('RPUSH', doorbell_delay, '1') end
