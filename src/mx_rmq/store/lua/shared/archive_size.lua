-- archive_size: how many bytes the archive holds.
-- Its seal is the number of messages held and of those that ever arrived. If the seal is wrong,
-- HEXPIRE, an older release or a command by hand has changed the archive. Then the bytes are
-- counted again, oldest first, about 1,000 messages per call; `sum` counts until `upto`.
-- needs: archive_payload, totals, kind, archive_bytes, now, recount_ms, archive
-- defines: holds, arrivals, stored, bytes, sealed, sum, upto, counted, fresh_until, finished
-- defines: began, counting

local holds = redis.call('HLEN', archive_payload)
local arrivals = ({dead = 'died', completed = 'kept'})[kind] or kind
arrivals = redis.pcall('HGET', totals, arrivals)
arrivals = type(arrivals) == 'string' and tonumber(arrivals) or 0
local stored = redis.call('HMGET', archive_bytes, kind, kind .. ':seal', kind .. ':sum',
  kind .. ':upto', kind .. ':counted')
local bytes, sealed = tonumber(stored[1]) or 0, holds == 0 and not stored[2]
sealed = sealed or stored[2] == string.format('%.0f %.0f', holds, arrivals)
local sum, upto, counted = tonumber(stored[3]), stored[4], tonumber(stored[5]) or 0
local fresh_until = counted > now and 0 or counted + recount_ms
local finished = false
local began = not tonumber(upto) and (not sealed or holds > 0 and now > fresh_until)
if began then sum, upto = 0, '-inf' end
local counting = began or tonumber(upto)
if counting then
  sum = sum or 0
  local edge = redis.call('ZRANGEBYSCORE', archive, '(' .. upto, '+inf', 'WITHSCORES',
    'LIMIT', 999, 1)
  local next_ones = redis.call('ZRANGEBYSCORE', archive, '(' .. upto, edge[2] or '+inf')
  for _, one in ipairs(next_ones) do
    sum = sum + redis.call('HSTRLEN', archive_payload, one)
  end
  upto, finished = edge[2], not edge[2]
  if finished then bytes, sum = sum, nil end
end
