-- clock: the server's time, unless a test passes one.
-- defines: now_ms, now

local now_ms = ARGV.now_ms -- the time (ms), or '' for the server's
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
