-- cancel_message: pending | delayed -> (gone)
-- Removes a message that no worker has started, and frees its id. If the id is produced again with
-- a higher priority while it has a skipped place, the new place may be skipped instead of the old
-- one: the message still runs once.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 not there, p in processing
-- Cost     O(log D) if delayed; O(N) if pending, N pending and not more than six times `walk`
-- keys: payload | pending* | delay_tasks* | cancelled expiry | processing
-- keys: lines ring blocked keyed running doorbell | waiting awaited signals
-- keys: recent maker receipt totals history

local id = ARGV.id -- the message
local by = ARGV.by -- who asks for it
-- use: clock, first_answer, history

local answer = '1'
if redis.call('HEXISTS', processing, id) == 1 then
  answer = 'p'
elseif redis.call('HEXISTS', payload, id) == 0 then
  answer = '0'
end
local waits = answer == '1'

local leaving, started = {waits and id or nil}, false
local ended = leaving
-- use: waiting_place, freed_keys, taken_id
redis.call('ZCARD', ring)
if not waits then marked, taken_until = false, false end

redis.call('ZREMRANGEBYRANK', delay_tasks, 1, 0) -- removes nothing, but works at maxmemory
if waits then redis.call('HDEL', payload, id) end
-- use: free_keys, leave_place, forget_keys, forget_signals, free_id

note('cancelled', by, {waits and id or nil})
-- use: receipt
return answer
