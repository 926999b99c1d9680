-- produce_cron_message: (new) -> pending, once a tick
--
-- Every worker calls this at each tick of a topic's timetable; the first one makes the message.
-- The last tick that fired is kept, and only a later one fires, so the call leaves no receipt: sent
-- again, it finds its tick fired. Without a record it only looks, and the first look ever notes
-- the time, so that a tick which everybody misses later can be noticed. A last tick that lies more
-- than a minute ahead is of a clock that was set back since, and does not count. The cap on waiting
-- messages does not count here, either.
--
-- Returns  now (ms); the last tick (ms) as it is after this, or ''; 1 if this call made the
--          message, else 0: the tick is not due yet, or has fired, or its id is taken
-- Cost     O(1)

local payload             = KEYS[1]  -- HASH  id -> record
local pending_high        = KEYS[2]  -- LIST  ids, newest first
local pending             = KEYS[3]  -- LIST  ids, newest first
local pending_low         = KEYS[4]  -- LIST  ids, newest first
local dlq_payload         = KEYS[5]  -- HASH  id -> final record
local error_parse_payload = KEYS[6]  -- HASH  id -> error and exact bytes
local doorbell            = KEYS[7]  -- LIST  at most one ring: something is pending
local meta                = KEYS[8]  -- HASH  token, turn, paused, dropped, tick
local expiry              = KEYS[9]  -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local totals              = KEYS[10] -- HASH  how many messages ever went which way
local history             = KEYS[11] -- STREAM  what has happened, newest last

local now_ms   = ARGV[1]           -- the time (ms), or '' for the server's
local id       = ARGV[2]           -- the message's
local tick_ms  = tonumber(ARGV[3]) -- when it is due (ms)
local record   = ARGV[4]           -- without its first brace; '' only to look
local priority = ARGV[5]           -- high, normal or low
local live_ms  = tonumber(ARGV[6]) -- its time to live (ms), or '': none
local remember = ARGV[7]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local look = record == ''
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
local last = tonumber(redis.call('HGET', meta, 'tick'))
if last and last > now + 60000 then last = nil end
local live = redis.call('HEXISTS', payload, id) == 1
local dead = redis.call('HEXISTS', dlq_payload, id) == 1
local quarantined = redis.call('HEXISTS', error_parse_payload, id) == 1
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)
redis.call('ZCARD', expiry)

local time, before = string.format('%.0f', now), last and string.format('%.0f', last) or ''
if look and last then return {time, before, 0} end
if not look and tick_ms > now then return {time, before, 0} end
if not look and last and last >= tick_ms then return {time, before, 0} end

local tick = string.format('%.0f', look and now or tick_ms)
if look or live or dead or quarantined then
  redis.call('HSET', meta, 'tick', tick)
  return {time, tick, 0}
end

local fresh = {2} -- where in ARGV the id is; the record is two further

-- shared: store the records, stamped with the server's time
local stamp, records = string.format('{"created_at":%.0f,', now), {}
for n = 1, #fresh do
  local i = fresh[n]
  records[2 * n - 1] = ARGV[i]
  records[2 * n] = stamp .. ARGV[i + 2]
end
redis.call('HSET', payload, unpack(records))
-- end

redis.call('LPUSH', behind, id)
redis.call('HSET', meta, 'tick', tick)
if live_ms then redis.call('ZADD', expiry, now + live_ms, id) end
if rung == 0 then redis.call('RPUSH', doorbell, '1') end
local what, by, done, about = 'produced', 'cron', {id}, nil

-- shared: count what has happened, and write it down; that this fails is no reason to fail
if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
-- end

return {time, tick, 1}
