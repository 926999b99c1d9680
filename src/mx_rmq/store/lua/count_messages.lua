-- count_messages: read
-- How many messages of a topic are in each state, all at one moment.
-- Returns  pending, delayed, waiting, processing, dead, quarantined, completed; 1 if paused; how
--          many ids without a message were ever dropped; for how long the first delayed message has
--          been due and the first lease has been over (ms, -1: none is); a list: the bytes of dead,
--          quarantined and completed messages, and when each archive last dropped some for its
--          bytes; the subscriptions; a list: what happened and how often, ever
-- Cost     O(log N), N delayed or in processing
-- keys: pending* | delay_tasks* | waiting | lines | cancelled | processing expire_monitor
-- keys: dlq error_parse_queue results archive_bytes | meta | totals

-- use: clock

local ready, delayed, due = 0, 0, math.huge
local ever = redis.pcall('HGETALL', totals)
for _, key in ipairs({pending_high, pending, pending_low}) do
  ready = ready + redis.call('LLEN', key)
end
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  delayed = delayed + redis.call('ZCARD', key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  due = math.min(due, tonumber(first[2]) or math.huge)
end
local first = redis.call('ZRANGE', expire_monitor, 0, 0, 'WITHSCORES')
local deadline = tonumber(first[2]) or math.huge
ready = math.max(0, ready - redis.call('SCARD', cancelled)) + redis.call('ZCARD', lines)
local parked = redis.call('ZCARD', waiting)
return {
  ready, delayed - parked, parked, redis.call('HLEN', processing), redis.call('ZCARD', dlq),
  redis.call('ZCARD', error_parse_queue), redis.call('ZCARD', results),
  redis.call('HEXISTS', meta, 'paused'),
  tonumber(redis.call('HGET', meta, 'dropped') or 0) or 0,
  due <= now and math.floor(now - due) or -1, deadline <= now and math.floor(now - deadline) or -1,
  redis.call('HMGET', archive_bytes, 'dead', 'quarantined', 'completed', 'dead:overflow',
    'quarantined:overflow', 'completed:overflow'),
  redis.call('HGET', meta, 'subscriptions') or '',
  ever.err and {} or ever,
}
