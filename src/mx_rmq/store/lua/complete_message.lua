-- complete_message: processing -> (gone)
-- Removes what a worker has handled: lease, deadline and record. A worker that has lost the lease
-- changes nothing and gets a 0.
-- Returns  one letter per message: 1 done, 2 done by an earlier copy of this call, 0 not its lease,
--          r its lease, but the message was replaced: nothing is done, see release_replaced
-- Cost     O(log P) per message, P in processing
-- keys: payload | processing expire_monitor | keyed running blocked doorbell signals
-- keys: receipt totals history

local each, width = ARGV.each, 2 -- per message: id, token
-- use: first_answer, history, held_messages
if count == 0 then return answer end

redis.call('HLEN', payload)
local leaving, started, ended = held, true, held
-- use: freed_keys

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HDEL', payload, unpack(held))
-- use: free_keys, forget_keys, forget_signals

note('completed', worker, held)
-- use: receipt
return answer
