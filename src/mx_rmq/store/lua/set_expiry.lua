-- set_expiry: pending | delayed -> the same, with an expiry time
-- Gives waiting messages their expiry time: their topic has a default time to live, and their
-- producer did not know it. A message that is gone, is held or has an expiry time is left alone,
-- so the call may be repeated.
-- Returns  how many got one
-- Cost     O(log E) per message, E with an expiry time
-- keys: payload | expiry | processing

local each, width = ARGV.each, 2 -- per message: id, expires_ms

local expiries = {}
for i = each, #ARGV, width do
  local id = ARGV[i]
  local waits = redis.call('HEXISTS', payload, id) > redis.call('HEXISTS', processing, id)
  if waits and not redis.call('ZMSCORE', expiry, id)[1] then
    expiries[#expiries + 1] = ARGV[i + 1]
    expiries[#expiries + 1] = id
  end
end

redis.call('ZREMRANGEBYRANK', expiry, 1, 0) -- removes nothing, but works at maxmemory
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
return #expiries / 2
