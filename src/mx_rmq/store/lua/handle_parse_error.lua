-- handle_parse_error: processing -> quarantined
--
-- Sets a message aside whose bytes cannot be read: one line about the error, a newline, then the
-- exact bytes, which the server copies and never looks into. Caps and TTL as in move_to_dlq.
--
-- Returns  as move_to_dlq
-- Cost     O(log P + log A), P in processing, A archived, and the length of the bytes

local payload         = KEYS[1]  -- HASH  id -> record
local processing      = KEYS[2]  -- HASH  id -> lease, token:worker
local expire_monitor  = KEYS[3]  -- ZSET  id -> lease deadline (ms)
local archive         = KEYS[4]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[5]  -- HASH  id -> what is kept of it
local receipt         = KEYS[6]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[7]  -- HASH  how many messages ever went which way
local history         = KEYS[8]  -- STREAM  what has happened, newest last

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- its number in the lane
local worker    = ARGV[3]           -- who holds the leases
local keep      = tonumber(ARGV[4]) -- how many archived ones to keep, 0: all
local ttl_ms    = tonumber(ARGV[5]) -- age to drop archived ones at, 0: never
local hexpire_s = tonumber(ARGV[6]) -- TTL of the archived field, 0: the server has no HEXPIRE
local max_bytes = tonumber(ARGV[7]) -- how many of the bytes to keep, 0: all
local id        = ARGV[8]           -- the message
local token     = ARGV[9]           -- of its lease
local info      = ARGV[10]          -- the line about the error
local why       = ARGV[11]          -- in a few words, for the history
local remember  = ARGV[12]          -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

-- shared: a call that comes again gets its first answer and changes nothing
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= call then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
-- end

if redis.call('HGET', processing, id) ~= token .. ':' .. worker then return '0' end
redis.call('ZCARD', expire_monitor)
local bytes = redis.call('HGET', payload, id) or ''
if max_bytes > 0 then bytes = string.sub(bytes, 1, max_bytes) end
local answer, arriving, kept = '1', 1, info .. '\n' .. bytes

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

redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
redis.call('HDEL', payload, id)

-- shared: drop them
if #victims > 0 then
  redis.call('HDEL', archive_payload, unpack(victims))
  redis.call('ZREM', archive, unpack(victims))
end
-- end

-- shared: archive the message
redis.call('HSET', archive_payload, id, kept)
redis.call('ZADD', archive, now, id)
if hexpire_s > 0 then redis.call('HEXPIRE', archive_payload, hexpire_s, 'FIELDS', 1, id) end
-- end

-- shared: tell of those that were dropped; that this fails is no reason to fail
if #victims > 0 then redis.pcall('HINCRBY', totals, 'trimmed', #victims) end
for first = 1, remember == '0' and 0 or #victims, 25 do
  local ids = table.concat(victims, ' ', first, math.min(first + 24, #victims))
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', 'trimmed', 'by', '',
    'ids', ids, 'about', '')
end
-- end

local what, by, done, about = 'quarantined', worker, {id}, {why}

-- shared: count what has happened, and write it down; that this fails is no reason to fail
if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
-- end

-- shared: write the receipt
redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
-- end

return answer
