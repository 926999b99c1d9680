-- release_replaced: processing -> pending | delayed
-- Lets go of a message that was replaced while the worker held it. Its new record waits for what
-- replace_message was told: behind the pending ones of its level, or until its due time.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 not its lease, or not replaced
-- Cost     O(log P + log D), P in processing, D delayed
-- keys: pending* | delay_tasks* | expiry | processing expire_monitor | doorbell doorbell_delay
-- keys: lines ring blocked keyed running signals | receipt totals history

local worker = ARGV.worker -- who holds the lease
local id     = ARGV.id     -- the message
local token  = ARGV.token  -- of its lease
-- use: clock, first_answer, history

local own, lease = token .. ':' .. worker .. ' ', redis.call('HGET', processing, id) or ''
if string.find(lease, own, 1, true) ~= 1 then return '0' end
redis.call('ZCARD', expire_monitor)
redis.call('ZCARD', expiry)
local priority, due, expires_ms = string.match(lease, '^(%l+) (%d*) (%d*)$', #own + 1)
local behind = ({high = pending_high, low = pending_low})[priority] or pending
local due_times, soonest = {high = {}, normal = {}, low = {}}, tonumber(due) or 0
local delayed = soonest > now
if delayed then due_times[priority] = {soonest, id} end
redis.call('LLEN', behind)
local rings = redis.call('LLEN', doorbell)
local leaving, started, joining, wake = {id}, true, {}, true
local own_place = redis.call('HGET', keyed, '!' .. id)
local in_line = own_place and string.find(own_place, '^[^\t]')
if in_line and not delayed then joining = {id, string.match(own_place, '^(.-)(\t.*)$')} end
-- use: earlier, freed_keys, line_ends

redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
-- use: free_keys, forget_keys
if own_place then
  redis.call('HDEL', keyed, '!' .. id)
  redis.call('HSET', keyed, id, own_place)
end
if delayed then
  -- use: add_delayed
else
  -- use: join_lines
  if not in_line then redis.call('LPUSH', behind, id) end
  if rings == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end
end
if tonumber(expires_ms) then redis.call('ZADD', expiry, expires_ms, id) end

local answer = '1'
note('released', worker, {id})
-- use: receipt
return answer
