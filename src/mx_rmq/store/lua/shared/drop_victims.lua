-- drop_victims: remove the victims, and note how many bytes the archive holds without them.
-- needs: victims, bytes, weights, sum, archive, upto, archive_payload, counting, arriving, sealed,
-- needs: began, holds, arrivals, now, weight, archive_bytes, kind, finished, overflow
-- defines: gone

local gone = 0
for n, one in ipairs(victims) do
  bytes = bytes - weights[n]
  if weights[n] > 0 then gone = gone + 1 end
  local at = sum and tonumber(redis.call('ZMSCORE', archive, one)[1])
  if at and at <= tonumber(upto) then sum = sum - weights[n] end
end

redis.call('ZREMRANGEBYRANK', archive, 1, 0) -- removes nothing, but works at maxmemory
for first = 1, #victims, 5000 do
  local last_one = math.min(first + 4999, #victims)
  redis.call('HDEL', archive_payload, unpack(victims, first, last_one))
  redis.call('ZREM', archive, unpack(victims, first, last_one))
end
if counting or arriving + #victims > 0 then
  local trusted = sealed or began
  local seal = string.format('%.0f %.0f', holds - gone + arriving, arrivals + arriving)
  if sum and now <= tonumber(upto) then sum = sum + weight end
  redis.call('HSET', archive_bytes, kind, string.format('%.0f', math.max(0, bytes + weight)),
    kind .. ':seal', trusted and seal or '',
    kind .. ':sum', sum and string.format('%.0f', sum) or '', kind .. ':upto', sum and upto or '')
  if finished then redis.call('HSET', archive_bytes, kind .. ':counted', now) end
  if overflow then redis.call('HSET', archive_bytes, kind .. ':overflow', now) end
end
