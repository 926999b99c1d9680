-- requeue_message: dead | quarantined -> pending
--
-- Sends an archived message round again with the record that the operator saw or edited. The
-- archived_ms that came with it must still be true: if somebody else was faster, nothing is done.
-- The server stamps into the record since when it waits, so that its age is known. A refusal leaves
-- a receipt too, so that a late copy of the call changes nothing.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local payload         = KEYS[1]  -- HASH  id -> record
local pending_high    = KEYS[2]  -- LIST  ids, newest first
local pending         = KEYS[3]  -- LIST  ids, newest first
local pending_low     = KEYS[4]  -- LIST  ids, newest first
local archive         = KEYS[5]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[6]  -- HASH  id -> what is kept of it
local archive_bytes   = KEYS[7]  -- HASH  bytes of each archive, and how far they are counted
local doorbell        = KEYS[8]  -- LIST  at most one ring: something is pending
local expiry          = KEYS[9]  -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local receipt         = KEYS[10] -- STRING  number and answer of the lane's last call
local totals          = KEYS[11] -- HASH  how many messages ever went which way
local history         = KEYS[12] -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local call        = tonumber(ARGV[2]) -- its number in the lane
local kind        = ARGV[3]           -- which archive: dead or quarantined
local id          = ARGV[4]           -- the message
local archived_ms = tonumber(ARGV[5]) -- when it was archived, as the operator saw it
local priority    = ARGV[6]           -- high, normal or low
local record      = ARGV[7]           -- its new one, without its first brace and when it is due
local expires_ms  = tonumber(ARGV[8]) -- when it expires (ms), or '': never
local why         = ARGV[9]           -- what is said of it in the history, or ''
local by          = ARGV[10]          -- who wants it
local remember    = ARGV[11]          -- how many entries of the history to keep, 0: none is written

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

local archived_at = redis.call('ZSCORE', archive, id)
local kept = redis.call('HEXISTS', archive_payload, id) == 1
local weights = {redis.call('HSTRLEN', archive_payload, id)}
local live = redis.call('HEXISTS', payload, id) == 1
local same = archived_at and tonumber(archived_at) == archived_ms
local answer = kept and same and not live and '1' or '0'
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)
redis.call('ZCARD', expiry)
local victims, arriving, weight, recount_ms = {answer == '1' and id or nil}, 0, 0, math.huge
local overflow = false

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

-- shared: what is left without them
local gone = 0
for n, one in ipairs(victims) do
  bytes = bytes - weights[n]
  if weights[n] > 0 then gone = gone + 1 end
  local at = sum and tonumber(redis.call('ZMSCORE', archive, one)[1])
  if at and at <= tonumber(upto) then sum = sum - weights[n] end
end
-- end

-- Removes nothing, but at maxmemory Redis allows it, and then the writes that follow.
redis.call('ZREMRANGEBYRANK', archive, 1, 0)

-- shared: drop them
for first = 1, #victims, 5000 do
  local last_one = math.min(first + 4999, #victims)
  redis.call('HDEL', archive_payload, unpack(victims, first, last_one))
  redis.call('ZREM', archive, unpack(victims, first, last_one))
end
-- end
if answer == '1' then
  redis.call('HSET', payload, id, string.format('{"due":%.0f,', now) .. record)
  redis.call('LPUSH', behind, id)
  if expires_ms then redis.call('ZADD', expiry, expires_ms, id) end
  if rung == 0 then redis.call('RPUSH', doorbell, '1') end
end

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

local what, done, about = 'requeued', {answer == '1' and id or nil}, why ~= '' and {why} or nil

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
