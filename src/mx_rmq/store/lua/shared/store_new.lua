-- store_new: store the new records with the server's time, and remember custom ids.
-- needs: fresh, now, payload, freed_marks, recent, stale, marks, recent_ttl, longest, expiries,
-- needs: expiry
-- defines: stamp, records, stored_ids

local stamp, records, stored_ids = string.format('{"created_at":%.0f,', now), {}, {}
for n = 1, #fresh do
  local i = fresh[n]
  stored_ids[n], records[2 * n - 1], records[2 * n] = ARGV[i], ARGV[i], stamp .. ARGV[i + 2]
end
redis.call('HSET', payload, unpack(records))
-- A used mark moves to the front and goes with the stale ids: a producer may not use ZREM.
for n = 1, #freed_marks do redis.call('ZADD', recent, 0, freed_marks[n]) end
stale = stale + #freed_marks
if stale > 0 then redis.call('ZREMRANGEBYRANK', recent, 0, stale - 1) end
if #marks > 0 then
  redis.call('ZADD', recent, unpack(marks))
  redis.call('PEXPIRE', recent, math.max(recent_ttl, longest, 600000))
end
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
