-- free_keys: the messages no longer take up places of their keys; blocked keys are looked at again.
-- needs: freed, running, waking, blocked, to_ring, doorbell

if #freed > 0 then redis.call('ZREM', running, unpack(freed)) end
if #waking > 0 then redis.call('ZADD', blocked, unpack(waking)) end
if to_ring then redis.call('RPUSH', doorbell, '1') end
