-- line_clock: the time by which buckets fill and blocked keys wait, in ms: the server's, plus
-- every time by which its clock was set back. So it never goes back, and buckets never stop filling.
-- needs: now, last_token, clock_ahead
-- defines: latest, at

clock_ahead = tonumber(clock_ahead) or 0
local latest = math.floor((tonumber(last_token) or 0) / 1000) -- when something was last leased
if latest < 8e12 and now + clock_ahead < latest - 1000 then clock_ahead = latest - now end
local at = now + clock_ahead
