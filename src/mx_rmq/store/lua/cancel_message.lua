-- cancel_message: pending | delayed -> (gone)
--
-- Removes a message that no worker has started, and frees its id: it can be produced again at once.
-- A refusal leaves a receipt too: otherwise a late copy of the call could still cancel what its
-- caller believes to be alive. To take an id out of a list Redis walks the list, and every client
-- waits. So the id is looked for at both ends, up to `walk` places; one that stands deeper keeps
-- its place, and dispatch_message passes over it. An id has at most one such place: before it would
-- get a second one, the list is walked after all. If the id is produced again meanwhile with a
-- higher priority, dispatch_message may pass over the new place and give the message at the old
-- one: it still runs exactly once.
--
-- Returns  1 done, 2 done when this call came the first time, 0 not there, p in processing
-- Cost     O(log D) when delayed; O(N) when pending, N pending and not more than six times `walk`

local payload          = KEYS[1]  -- HASH  id -> record
local pending_high     = KEYS[2]  -- LIST  ids, newest first
local pending          = KEYS[3]  -- LIST  ids, newest first
local pending_low      = KEYS[4]  -- LIST  ids, newest first
local processing       = KEYS[5]  -- HASH  id -> lease, token:worker
local delay_tasks_high = KEYS[6]  -- ZSET  id -> due (ms)
local delay_tasks      = KEYS[7]  -- ZSET  id -> due (ms)
local delay_tasks_low  = KEYS[8]  -- ZSET  id -> due (ms)
local cancelled        = KEYS[9]  -- SET  ids of which one place in a pending list does not count
local recent           = KEYS[10] -- ZSET  custom id -> until when it is taken (ms)
local maker            = KEYS[11] -- STRING  receipt of the lane that made the id, if one did
local expiry           = KEYS[12] -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local receipt          = KEYS[13] -- STRING  number and answer of the lane's last call
local totals           = KEYS[14] -- HASH  how many messages ever went which way
local history          = KEYS[15] -- STREAM  what has happened, newest last

local now_ms   = ARGV[1]           -- the time (ms), or '' for the server's
local call     = tonumber(ARGV[2]) -- its number in the lane
local id       = ARGV[3]           -- the message
local made     = ARGV[4]           -- '1': a lane made the id
local walk     = tonumber(ARGV[5]) -- how far a list is walked from each end
local by       = ARGV[6]           -- who wants it
local remember = ARGV[7]           -- how many entries of the history to keep, 0: none is written

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

local answer = '1'
if redis.call('HEXISTS', processing, id) == 1 then
  answer = 'p'
elseif redis.call('HEXISTS', payload, id) == 0 then
  answer = '0'
end
local delayed = false
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  delayed = redis.call('ZSCORE', key, id) or delayed
end
local list, from, deep = nil, 1, false
for _, key in ipairs({pending_high, pending, pending_low}) do
  deep = redis.call('LLEN', key) > 2 * walk or deep
  if answer ~= '1' or delayed or list then
    -- it is nowhere in here, or found
  elseif redis.call('LPOS', key, id, 'MAXLEN', walk) then
    list = key
  elseif redis.call('LPOS', key, id, 'RANK', '-1', 'MAXLEN', walk) then
    list, from = key, -1
  end
end
local passed = redis.call('SISMEMBER', cancelled, id) == 1
local expires = redis.call('ZSCORE', expiry, id)

-- shared: what keeps the id taken
local taken_until = redis.call('ZMSCORE', recent, id)[1]
local recent_ttl = redis.call('PTTL', recent)
local marked = made == '1' and (taken_until or redis.pcall('GET', maker))
-- end
if answer ~= '1' then marked, taken_until = false, false end

-- Removes nothing, but at maxmemory Redis allows it, and then the writes that follow.
redis.call('ZREMRANGEBYRANK', delay_tasks, 1, 0)
if answer == '1' then redis.call('HDEL', payload, id) end
if answer == '1' and expires then redis.call('ZREM', expiry, id) end
if answer == '1' and delayed then
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    redis.call('ZREM', key, id)
  end
elseif list then
  redis.call('LREM', list, from, id)
elseif answer == '1' and deep and not passed then
  redis.call('SADD', cancelled, id)
elseif answer == '1' and deep then
  for _, key in ipairs({pending_high, pending, pending_low}) do
    if redis.call('LREM', key, 1, id) == 1 then break end
  end
end

-- shared: free the id
if marked then
  local free_ms = math.max(1800000, (tonumber(taken_until) or 0) - now)
  redis.call('ZADD', recent, string.format('%.0f', now + free_ms), '!' .. id)
  redis.call('PEXPIRE', recent, math.max(recent_ttl, free_ms))
elseif taken_until and made == '0' then
  redis.call('ZREM', recent, id)
end
-- end

local what, done, about = 'cancelled', {answer == '1' and id or nil}, nil

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
