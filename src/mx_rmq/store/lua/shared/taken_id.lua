-- taken_id: what keeps the id taken.
-- needs: recent, id, maker
-- defines: made, taken_until, recent_ttl, marked

local made = ARGV.made -- '1': a lane generated the id
local taken_until = redis.call('ZMSCORE', recent, id)[1]
local recent_ttl = redis.call('PTTL', recent)
local marked = made == '1' and (taken_until or redis.pcall('GET', maker))
