-- records_that_fit: the records of the first ids, up to 8 MiB or a single one, read in growing
-- steps.
-- needs: ids, payload
-- defines: records, bytes, fit, upto, step

local records, bytes, fit, upto, step = {}, 0, 0, 0, 8
while fit == upto and fit < #ids do
  upto = math.min(fit + step, #ids)
  local found = redis.call('HMGET', payload, unpack(ids, fit + 1, upto))
  for i = 1, #found do
    local record = found[i]
    if record then bytes = bytes + #record end
    if bytes > 8388608 and fit > 0 then break end
    fit = fit + 1
    records[fit] = record
  end
  step = step * 2
end
