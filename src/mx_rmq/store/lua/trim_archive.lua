-- trim_archive: dead | quarantined -> (gone), by age and count
--
-- What every archiving call does too, for a topic in which nothing is archived any more. At most
-- 200 a call. Shortens the history, too, by at most 10,000 entries.
--
-- Returns  how many it dropped
-- Cost     O(log A) a message, A archived

local archive         = KEYS[1]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[2]  -- HASH  id -> what is kept of it
local totals          = KEYS[3]  -- HASH  how many messages ever went which way
local history         = KEYS[4]  -- STREAM  what has happened, newest last

local now_ms   = ARGV[1]           -- the time (ms), or '' for the server's
local keep     = tonumber(ARGV[2]) -- how many archived ones to keep, 0: all
local ttl_ms   = tonumber(ARGV[3]) -- age to drop archived ones at, 0: never
local remember = ARGV[4]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local arriving = 0
redis.pcall('XLEN', history)

-- shared: who is over the age or the cap
local victims = {}
if ttl_ms > 0 then
  victims = redis.call('ZRANGEBYSCORE', archive, '-inf', now - ttl_ms, 'LIMIT', 0, 100)
end
local surplus = redis.call('ZCARD', archive) + arriving - #victims - keep
if keep > 0 and surplus > 0 then
  local oldest = redis.call('ZRANGE', archive, #victims, #victims + math.min(surplus, 100) - 1)
  for _, id in ipairs(oldest) do victims[#victims + 1] = id end
end
redis.call('HLEN', archive_payload)
-- end

-- shared: drop them
if #victims > 0 then
  redis.call('HDEL', archive_payload, unpack(victims))
  redis.call('ZREM', archive, unpack(victims))
end
-- end

-- shared: tell of those that were dropped; that this fails is no reason to fail
if #victims > 0 then redis.pcall('HINCRBY', totals, 'trimmed', #victims) end
for first = 1, remember == '0' and 0 or #victims, 25 do
  local ids = table.concat(victims, ' ', first, math.min(first + 24, #victims))
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', 'trimmed', 'by', '',
    'ids', ids, 'about', '')
end
-- end

-- The history may be longer than it shall be by now, and perhaps nobody adds to it.
redis.pcall('XTRIM', history, 'MAXLEN', '~', remember)

return #victims
