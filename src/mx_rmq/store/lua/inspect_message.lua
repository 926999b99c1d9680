-- inspect_message: read
--
-- Where messages stand, all of one moment: how the audit confirms what it suspects. The place of a
-- cancelled one in a list does not count.
--
-- Returns  for each id a string of counts: record, pending, delayed, lease, deadline, dead index,
--          dead letter, quarantine index, quarantined bytes, expiry, and 1 if a place was cancelled
--          that is not there. Pending counts to 2; it and the last stay 0 unless walk is 1.
-- Cost     O(log N) per id; with walk O(N), N pending

local payload   = KEYS[1] -- HASH  id -> record
local pending_high, pending, pending_low = KEYS[2], KEYS[3], KEYS[4] -- LIST  ids, newest first
local delay_tasks_high, delay_tasks, delay_tasks_low = KEYS[5], KEYS[6], KEYS[7] -- ZSET  due (ms)
local cancelled = KEYS[8] -- SET  ids with one place in a pending list that does not count
local expiry    = KEYS[9] -- ZSET  waiting id -> when it expires (ms)

local processing     = KEYS[10] -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[11] -- ZSET  id -> lease deadline (ms)

local dlq                 = KEYS[12] -- ZSET  id -> time of death (ms)
local dlq_payload         = KEYS[13] -- HASH  id -> final record
local error_parse_queue   = KEYS[14] -- ZSET  id -> time of quarantine (ms)
local error_parse_payload = KEYS[15] -- HASH  id -> error and exact bytes

local walk = tonumber(ARGV[1]) -- 1: walk the pending lists too
local each = 2                 -- per message: id

local reply = {}
for i = each, #ARGV do
  local id, waiting, delayed = ARGV[i], 0, 0
  for _, key in ipairs(walk == 1 and {pending_high, pending, pending_low} or {}) do
    waiting = waiting + #redis.call('LPOS', key, id, 'COUNT', 3)
  end
  waiting = waiting - redis.call('SISMEMBER', cancelled, id)
  local astray = walk == 1 and waiting < 0 and 1 or 0
  waiting = math.min(2, math.max(0, waiting))
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    if redis.call('ZSCORE', key, id) then delayed = delayed + 1 end
  end
  reply[#reply + 1] = string.format('%d%d%d%d%d%d%d%d%d%d%d',
    redis.call('HEXISTS', payload, id), waiting, delayed,
    redis.call('HEXISTS', processing, id), redis.call('ZSCORE', expire_monitor, id) and 1 or 0,
    redis.call('ZSCORE', dlq, id) and 1 or 0, redis.call('HEXISTS', dlq_payload, id),
    redis.call('ZSCORE', error_parse_queue, id) and 1 or 0,
    redis.call('HEXISTS', error_parse_payload, id),
    redis.call('ZSCORE', expiry, id) and 1 or 0, astray)
end
return reply
