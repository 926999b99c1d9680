-- complete_message: processing -> (gone)
-- Removes what a worker has handled: lease, deadline and record. A worker that has lost the lease
-- changes nothing and gets a 0.
-- Returns  one digit per message: 1 done, 2 done by an earlier copy of this call, 0 not its lease
-- Cost     O(log P) per message, P in processing
-- keys: payload | processing expire_monitor | receipt totals history

local each, width = ARGV.each, 2 -- per message: id, token
-- use: first_answer, history, held_messages

redis.call('HLEN', payload)

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HDEL', payload, unpack(held))

note('completed', worker, held)
-- use: receipt
return answer
