-- repair_topic: repair
-- Fixes what belongs to no single message: a token counter that is not a number or is behind a
-- lease, doorbells with more than one ring, and the recorded bytes of the archives. For the bytes
-- it only removes the seals: the next call that archives or trims then recounts them.
-- Returns  what it did, or would do, in words; empty if all was right
-- Cost     O(1)
-- keys: archive_bytes | doorbell doorbell_delay meta

local least   = tonumber(ARGV.least) -- the highest token of a lease that was seen, or 0
local recount = ARGV.recount         -- '1': the recorded bytes are wrong
local dry     = ARGV.dry             -- '1': only say what would be done
-- use: clock

local token = redis.call('HGET', meta, 'token')
local behind = (tonumber(token) or 0) < least
local nonsense = token and not string.find(token, '^%d+$')
local rings = redis.call('LLEN', doorbell)
local rings_delay = redis.call('LLEN', doorbell_delay)
redis.call('HLEN', archive_bytes)

local did = {}
if behind or nonsense then did[#did + 1] = 'token counter set' end
if rings > 1 then did[#did + 1] = 'doorbell left with one ring' end
if rings_delay > 1 then did[#did + 1] = 'doorbell:delay left with one ring' end
if recount == '1' then did[#did + 1] = 'bytes of the archives counted again' end
if dry == '1' or #did == 0 then return did end

redis.call('LTRIM', doorbell, 0, 0) -- even if there is nothing to trim: it works at maxmemory
redis.call('LTRIM', doorbell_delay, 0, 0)
if behind or nonsense then
  local ahead = math.max(least, math.min(now, 8e12) * 1000)
  redis.call('HSET', meta, 'token', string.format('%.0f', ahead))
end
if recount == '1' then
  redis.call('HSET', archive_bytes, 'dead:seal', '', 'quarantined:seal', '', 'completed:seal', '')
end
return did
