-- store_leases: lease the messages.
-- needs: fit, expiring, expiry, ids, given, leased, leases, processing, deadlines, expire_monitor

if fit > 0 and type(expiring) == 'number' and expiring > 0 then
  redis.call('ZREM', expiry, unpack(ids, 1, fit))
end
if given > 0 then
  -- Redis keeps a small hash or sorted set in one flat block and walks it for every id, until an
  -- entry is longer than 64 bytes. So before many ids are added, a long entry is added and removed
  -- again: a padded lease, which is no message's id because its token is new.
  local many = leased + given > 32
  local long = many and string.format('%65s', leases[2])
  local flat_hash = many and leased < 512 and #leases[2] < 65
  local flat_set = many and leased < 128
  if flat_hash then redis.call('HSET', processing, long, '') end
  if flat_set then redis.call('ZADD', expire_monitor, '0', long) end
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', expire_monitor, unpack(deadlines))
  if flat_hash then redis.call('HDEL', processing, long) end
  if flat_set then redis.call('ZREM', expire_monitor, long) end
end
