-- clock: the server's time, unless a test passes one.
-- needs: now_ms
-- defines: now

local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
