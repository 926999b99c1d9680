-- complete_message: processing -> (gone)
--
-- Removes what a worker has handled: lease, deadline and record. Only the holder of the lease can
-- do this. A worker that has lost the lease changes nothing and gets a 0.
--
-- Returns  a string, one digit per message: 1 done, 2 done by an earlier copy of this call, 0 the
--          worker no longer holds it
-- Cost     O(log P) per message, P in processing

local payload        = KEYS[1] -- HASH  id -> record
local processing     = KEYS[2] -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[3] -- ZSET  id -> lease deadline (ms)
local receipt        = KEYS[4] -- STRING  number and answer of the lane's last call
local totals         = KEYS[5] -- HASH  what happened -> how often, ever
local history        = KEYS[6] -- STREAM  what happened, newest last

local call     = tonumber(ARGV[1]) -- this call's number in its lane
local worker   = ARGV[2]           -- who holds the leases
local remember = ARGV[3]           -- history entries to keep, 0: write none
local each     = 4                 -- per message: id, token
local width    = 2

-- use: first_answer
-- use: held_messages

redis.call('HLEN', payload)

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HDEL', payload, unpack(held))

local what, by, done, about = 'completed', worker, held, nil
-- use: history
-- use: receipt
return answer
