-- at_maxmemory: removes nothing. But Redis at its maxmemory allows this write, and then those
-- that follow it.
-- needs: expire_monitor

redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0)
