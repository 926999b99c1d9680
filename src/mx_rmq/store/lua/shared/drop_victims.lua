-- drop_victims: remove the victims, and note how many bytes the archive holds.
-- needs: victims, archive_payload, archive, counting, arriving, sealed, began, held, gone,
-- needs: arrivals, sum, now, upto, weight, archive_bytes, kind, bytes, finished, overflow

for first = 1, #victims, 5000 do
  local last_one = math.min(first + 4999, #victims)
  redis.call('HDEL', archive_payload, unpack(victims, first, last_one))
  redis.call('ZREM', archive, unpack(victims, first, last_one))
end
if counting or arriving + #victims > 0 then
  local trusted = sealed or began
  local seal = string.format('%.0f %.0f', held - gone + arriving, arrivals + arriving)
  if sum and now <= tonumber(upto) then sum = sum + weight end
  redis.call('HSET', archive_bytes, kind, string.format('%.0f', math.max(0, bytes + weight)),
    kind .. ':seal', trusted and seal or '',
    kind .. ':sum', sum and string.format('%.0f', sum) or '', kind .. ':upto', sum and upto or '')
  if finished then redis.call('HSET', archive_bytes, kind .. ':counted', now) end
  if overflow then redis.call('HSET', archive_bytes, kind .. ':overflow', now) end
end
