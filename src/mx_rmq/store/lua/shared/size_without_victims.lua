-- size_without_victims: the bytes that are left once the victims are gone.
-- needs: victims, bytes, weights, sum, archive, upto
-- defines: gone

local gone = 0
for n, one in ipairs(victims) do
  bytes = bytes - weights[n]
  if weights[n] > 0 then gone = gone + 1 end
  local at = sum and tonumber(redis.call('ZMSCORE', archive, one)[1])
  if at and at <= tonumber(upto) then sum = sum - weights[n] end
end
