-- next_token: the next fencing token. It only grows, even if a failover has lost the counter,
-- because it is never behind the clock (µs).
-- needs: last_token, now
-- defines: token

last_token = math.floor(tonumber(last_token) or 0)
if not (last_token < 9e15) then last_token = 0 end -- nan, or so large that it cannot grow
local token = math.max(last_token + 1, math.min(now, 8e12) * 1000)
