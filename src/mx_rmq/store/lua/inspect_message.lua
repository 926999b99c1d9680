-- inspect_message: read
-- Where messages are, all at one moment: how the audit confirms what it suspects.
-- Returns  for each id a string of counts: record, pending, delayed, lease, deadline, dead index,
--          dead letter, quarantine index, quarantined bytes, result index, result, expiry, and 1 if
--          a place was cancelled that is not there. Pending counts to 2, without a cancelled
--          place; it and the last stay 0 unless walk is 1.
-- Cost     O(log N) per id; with walk O(N), N pending
-- keys: payload | pending* | delay_tasks* | lines keyed | cancelled expiry | processing expire_monitor
-- keys: dlq dlq_payload error_parse_queue error_parse_payload results results_payload

local walk = tonumber(ARGV.walk) -- 1: walk the pending lists too
local each = ARGV.each           -- per message: id

local reply = {}
for i = each, #ARGV do
  local id, waiting, delayed = ARGV[i], 0, 0
  for _, key in ipairs(walk == 1 and {pending_high, pending, pending_low} or {}) do
    waiting = waiting + #redis.call('LPOS', key, id, 'COUNT', 3)
  end
  waiting = waiting - redis.call('SISMEMBER', cancelled, id)
  local astray = walk == 1 and waiting < 0 and 1 or 0
  waiting = math.max(0, waiting)
  local place = redis.call('HGET', keyed, id)
  if place and redis.call('ZSCORE', lines, place .. id) then waiting = waiting + 1 end
  waiting = math.min(2, waiting)
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    if redis.call('ZSCORE', key, id) then delayed = delayed + 1 end
  end
  reply[#reply + 1] = string.format('%d%d%d%d%d%d%d%d%d%d%d%d%d',
    redis.call('HEXISTS', payload, id), waiting, delayed,
    redis.call('HEXISTS', processing, id), redis.call('ZSCORE', expire_monitor, id) and 1 or 0,
    redis.call('ZSCORE', dlq, id) and 1 or 0, redis.call('HEXISTS', dlq_payload, id),
    redis.call('ZSCORE', error_parse_queue, id) and 1 or 0,
    redis.call('HEXISTS', error_parse_payload, id),
    redis.call('ZSCORE', results, id) and 1 or 0, redis.call('HEXISTS', results_payload, id),
    redis.call('ZSCORE', expiry, id) and 1 or 0, astray)
end
return reply
