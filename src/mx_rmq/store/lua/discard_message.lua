-- discard_message: dead | quarantined -> (gone)
--
-- Deletes an archived message, and frees its id: it can be produced again at once. The archived_ms
-- that the operator saw must still be true. A refusal leaves a receipt too, so that a late copy of
-- the call changes nothing.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local archive         = KEYS[1]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[2]  -- HASH  id -> what is kept of it
local archive_bytes   = KEYS[3]  -- HASH  bytes of each archive, and how far they are counted
local recent          = KEYS[4]  -- ZSET  custom id -> until when it is taken (ms)
local maker           = KEYS[5]  -- STRING  receipt of the lane that made the id, if one did
local receipt         = KEYS[6]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[7]  -- HASH  how many messages ever went which way
local history         = KEYS[8]  -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local call        = tonumber(ARGV[2]) -- its number in the lane
local kind        = ARGV[3]           -- which archive: dead or quarantined
local id          = ARGV[4]           -- the message
local made        = ARGV[5]           -- '1': a lane made the id
local archived_ms = tonumber(ARGV[6]) -- when it was archived, as the operator saw it
local by          = ARGV[7]           -- who wants it
local remember    = ARGV[8]           -- how many entries of the history to keep, 0: none is written

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
local weights = {redis.call('HSTRLEN', archive_payload, id)}
local answer = archived_at and tonumber(archived_at) == archived_ms and '1' or '0'
local victims, arriving, weight, recount_ms = {answer == '1' and id or nil}, 0, 0, math.huge
local overflow = false

-- shared: what keeps the id taken
local taken_until = redis.call('ZMSCORE', recent, id)[1]
local recent_ttl = redis.call('PTTL', recent)
local marked = made == '1' and (taken_until or redis.pcall('GET', maker))
-- end
-- Without contents, only the index was left of it: the id may belong to a live message by now.
if answer == '0' or weights[1] == 0 then marked, taken_until = false, false end

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

-- shared: free the id
if marked then
  local free_ms = math.max(1800000, (tonumber(taken_until) or 0) - now)
  redis.call('ZADD', recent, string.format('%.0f', now + free_ms), '!' .. id)
  redis.call('PEXPIRE', recent, math.max(recent_ttl, free_ms))
elseif taken_until and made == '0' then
  redis.call('ZREM', recent, id)
end
-- end

local what, done, about = 'discarded', {answer == '1' and id or nil}, nil

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
