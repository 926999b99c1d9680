-- pause_topic: dispatch_message gives nothing until resume_topic
--
-- Producing, settling and delays go on. Harmless to repeat.
--
-- Returns  1 paused now, 0 it was paused already
-- Cost     O(1)

local meta = KEYS[1]  -- HASH  token, turn, paused, dropped

local paused = redis.call('HEXISTS', meta, 'paused')

-- At maxmemory Redis allows the first write, and then the second.
redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', '1')
return 1 - paused
