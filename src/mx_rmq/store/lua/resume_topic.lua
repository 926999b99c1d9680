-- resume_topic: dispatch_message gives messages again
--
-- Rings the doorbell if something waits. Harmless to repeat.
--
-- Returns  1 resumed now, 0 it was not paused
-- Cost     O(1)

local pending_high = KEYS[1]  -- LIST  ids, newest first
local pending      = KEYS[2]  -- LIST  ids, newest first
local pending_low  = KEYS[3]  -- LIST  ids, newest first
local doorbell     = KEYS[4]  -- LIST  at most one ring: something is pending
local meta         = KEYS[5]  -- HASH  token, turn, paused, dropped

local waiting = 0
for _, key in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', key)
end
local rung = redis.call('LLEN', doorbell)
local paused = redis.call('HEXISTS', meta, 'paused')

redis.call('HDEL', meta, 'paused')
if waiting > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end
return paused
