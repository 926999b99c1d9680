-- handle_parse_error: processing -> quarantined
--
-- Sets a message aside whose bytes cannot be read: one line about the error, a newline, then the
-- exact bytes, which the server copies and never looks into. Caps, budget and TTL as in
-- move_to_dlq, but bytes that are longer than the whole budget are cut.
--
-- Returns  as move_to_dlq
-- Cost     as move_to_dlq, and the length of the bytes

local payload         = KEYS[1]  -- HASH  id -> record
local processing      = KEYS[2]  -- HASH  id -> lease, token:worker
local expire_monitor  = KEYS[3]  -- ZSET  id -> lease deadline (ms)
local archive         = KEYS[4]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[5]  -- HASH  id -> what is kept of it
local archive_bytes   = KEYS[6]  -- HASH  bytes of each archive, and how far they are counted
local receipt         = KEYS[7]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[8]  -- HASH  how many messages ever went which way
local history         = KEYS[9]  -- STREAM  what has happened, newest last

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- its number in the lane
local worker    = ARGV[3]           -- who holds the leases
local keep      = tonumber(ARGV[4]) -- how many archived ones to keep, 0: all
local ttl_ms    = tonumber(ARGV[5]) -- age to drop archived ones at, 0: never
local budget    = tonumber(ARGV[6]) -- bytes that the archive may hold, 0: any number
local hexpire_s = tonumber(ARGV[7]) -- TTL of the archived field, 0: the server has no HEXPIRE
local max_bytes = tonumber(ARGV[8]) -- how many of the bytes to keep, 0: all
local id        = ARGV[9]           -- the message
local token     = ARGV[10]          -- of its lease
local info      = ARGV[11]          -- the line about the error
local why       = ARGV[12]          -- in a few words, for the history
local remember  = ARGV[13]          -- how many entries of the history to keep, 0: none is written

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
local record = redis.call('HGET', payload, id) or ''
if max_bytes > 0 then record = string.sub(record, 1, max_bytes) end
if budget > 0 then record = string.sub(record, 1, math.max(0, budget - 201 - #info)) end
local answer, arriving, kept, kind = '1', 1, info .. '\n' .. record, 'quarantined'
local weight, recount_ms = #kept, math.huge

-- shared: how many bytes the archive holds
-- `bytes` is the sum of what is kept. It is sealed with the number of messages held and of those
-- that ever arrived: if these are no longer true, something that keeps no count has changed the
-- archive (HEXPIRE, a worker of an older release, a command by hand). Then it is counted again from
-- the oldest on, about 1,000 messages per call: `sum` counts those archived until `upto`.
local held = redis.call('HLEN', archive_payload)
local arrivals = redis.pcall('HGET', totals, kind == 'dead' and 'died' or 'quarantined')
arrivals = type(arrivals) == 'string' and tonumber(arrivals) or 0
local stored = redis.call('HMGET', archive_bytes, kind, kind .. ':seal', kind .. ':sum',
  kind .. ':upto', kind .. ':counted')
local bytes, sealed = tonumber(stored[1]) or 0, held == 0 and not stored[2]
sealed = sealed or stored[2] == string.format('%.0f %.0f', held, arrivals)
local sum, upto, counted = tonumber(stored[3]), stored[4], tonumber(stored[5]) or 0
local fresh_until = counted > now and 0 or counted + recount_ms
local began, finished = not tonumber(upto) and (not sealed or held > 0 and now > fresh_until), false
if began then sum, upto = 0, '-inf' end
local counting = began or tonumber(upto)
if counting then
  sum = sum or 0
  local edge = redis.call('ZRANGEBYSCORE', archive, '(' .. upto, '+inf', 'WITHSCORES',
    'LIMIT', 999, 1)
  local next_ones = redis.call('ZRANGEBYSCORE', archive, '(' .. upto, edge[2] or '+inf')
  for _, one in ipairs(next_ones) do
    sum = sum + redis.call('HSTRLEN', archive_payload, one)
  end
  upto, finished = edge[2], not edge[2]
  if finished then bytes, sum = sum, nil end
end
-- end
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- shared: who is over the age, the cap or the budget
local victims, weights = {}, {}
if ttl_ms > 0 then
  victims = redis.call('ZRANGEBYSCORE', archive, '-inf', now - ttl_ms, 'LIMIT', 0, 100)
end
local listed = redis.call('ZCARD', archive)
local surplus = listed + arriving - #victims - keep
if keep > 0 and surplus > 0 then
  local oldest = redis.call('ZRANGE', archive, #victims, #victims + math.min(surplus, 100) - 1)
  for _, one in ipairs(oldest) do victims[#victims + 1] = one end
end
-- A message counts for what is kept of it and 200 bytes for its places in index and hash.
local load = bytes + weight + 200 * (listed + arriving - #victims)
for n, one in ipairs(victims) do
  weights[n] = redis.call('HSTRLEN', archive_payload, one)
  load = load - weights[n]
end
local overflow = false
while budget > 0 and load > budget and #victims < math.min(listed, 10000) do
  for _, one in ipairs(redis.call('ZRANGE', archive, #victims, #victims + 99)) do
    if load <= budget then break end
    victims[#victims + 1], overflow = one, true
    weights[#victims] = redis.call('HSTRLEN', archive_payload, one)
    load = load - weights[#victims] - 200
  end
end
-- end

-- shared: what is left without them
local gone = 0
for n, one in ipairs(victims) do
  bytes = bytes - weights[n]
  if weights[n] > 0 then gone = gone + 1 end
  local at = sum and tonumber(redis.call('ZMSCORE', archive, one)[1])
  if at and at <= tonumber(upto) then sum = sum - weights[n] end
end
-- end

redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
redis.call('HDEL', payload, id)

-- shared: drop them
for first = 1, #victims, 5000 do
  local last_one = math.min(first + 4999, #victims)
  redis.call('HDEL', archive_payload, unpack(victims, first, last_one))
  redis.call('ZREM', archive, unpack(victims, first, last_one))
end
-- end

-- shared: archive the message
redis.call('HSET', archive_payload, id, kept)
redis.call('ZADD', archive, now, id)
if hexpire_s > 0 then redis.call('HEXPIRE', archive_payload, hexpire_s, 'FIELDS', 1, id) end
-- end

-- shared: note how many bytes the archive holds
if counting or arriving + #victims > 0 then
  local trusted = sealed or began
  local seal = string.format('%.0f %.0f', held - gone + arriving, arrivals + arriving)
  if sum and now <= tonumber(upto) then sum = sum + weight end
  redis.call('HSET', archive_bytes, kind, string.format('%.0f', math.max(0, bytes + weight)),
    kind .. ':seal', trusted and seal or '',
    kind .. ':sum', sum and string.format('%.0f', sum) or '', kind .. ':upto', sum and upto or '')
  if finished then redis.call('HSET', archive_bytes, kind .. ':counted', now) end
  if overflow then redis.call('HSET', archive_bytes, kind .. ':overflow', now) end
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
