-- ring_doorbell: a ring goes back
-- A worker that took the ring and cannot use it (no room, shutting down) gives it back for another
-- worker. Rings at most once, so it is safe to repeat. A key of a wrong type counts as empty. If
-- the caller was to come back when a block ends, or to stand in for the one that was, the next
-- worker that asks takes that over.
-- Returns  1 rung now, 0 there was a ring, or nothing is pending
-- Cost     O(1)
-- keys: pending* | lines | doorbell meta

local leaving = ARGV.leaving -- a worker that does not come back when a block ends; '': none

local waiting = 0
for _, key in ipairs({pending_high, pending, pending_low}) do
  local length = redis.pcall('LLEN', key)
  waiting = waiting + (type(length) == 'number' and length or 0)
end
local in_lines = redis.pcall('ZCARD', lines)
waiting = waiting + (type(in_lines) == 'number' and in_lines or 0)
local rung, given_up = redis.call('LLEN', doorbell) > 0, {}
local told = leaving ~= '' and redis.pcall('HMGET', meta, 'wake_at', 'stand_in') or {}
for n, name in ipairs({'wake_at', 'stand_in'}) do
  if told[n] and string.match(told[n], ' (.*)$') == leaving then given_up[#given_up + 1] = name end
end

if #given_up > 0 then redis.call('HDEL', meta, unpack(given_up)) end
if rung or waiting == 0 then return 0 end
redis.call('LTRIM', doorbell, 0, 0) -- trims nothing, but works at maxmemory
redis.call('RPUSH', doorbell, '1')
return 1
