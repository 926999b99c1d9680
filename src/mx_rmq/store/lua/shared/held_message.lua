-- held_message: go on only if the worker still holds the message, and it was not replaced.
-- needs: processing, expire_monitor
-- defines: worker, id, token, lease, own

local worker = ARGV.worker -- who holds the lease
local id     = ARGV.id     -- the message
local token  = ARGV.token  -- of its lease
local lease, own = redis.call('HGET', processing, id), token .. ':' .. worker
if lease ~= own then
  return lease and string.find(lease, own .. ' ', 1, true) == 1 and 'r' or '0'
end
redis.call('ZCARD', expire_monitor)
