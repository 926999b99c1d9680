-- held_message: go on only if the worker still holds the message.
-- needs: processing, expire_monitor
-- defines: worker, id, token

local worker = ARGV.worker -- who holds the lease
local id     = ARGV.id     -- the message
local token  = ARGV.token  -- of its lease
if redis.call('HGET', processing, id) ~= token .. ':' .. worker then return '0' end
redis.call('ZCARD', expire_monitor)
