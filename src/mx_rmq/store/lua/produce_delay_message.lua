-- produce_delay_message: (new) -> delayed
--
-- Stores new messages that wait for their due time: the server's now + delay_ms, or at_ms. What a
-- message's `how` and record are, and which ids are new, is as in produce_normal_message. Rings the
-- scheduler only when one of them is due before everything that waits already.
--
-- Returns  as produce_normal_message
-- Cost     O(log D) a message, D delayed

local payload             = KEYS[1]  -- HASH  id -> record
local pending_high        = KEYS[2]  -- LIST  ids, newest first
local pending             = KEYS[3]  -- LIST  ids, newest first
local pending_low         = KEYS[4]  -- LIST  ids, newest first
local delay_tasks_high    = KEYS[5]  -- ZSET  id -> due (ms)
local delay_tasks         = KEYS[6]  -- ZSET  id -> due (ms)
local delay_tasks_low     = KEYS[7]  -- ZSET  id -> due (ms)
local dlq_payload         = KEYS[8]  -- HASH  id -> final record
local error_parse_payload = KEYS[9]  -- HASH  id -> error and exact bytes
local recent              = KEYS[10] -- ZSET  custom id -> until when it is taken (ms)
local doorbell_delay      = KEYS[11] -- LIST  at most one ring: an earlier due time
local cancelled           = KEYS[12] -- SET  ids of which one place in a pending list does not count
local receipt             = KEYS[13] -- STRING  number and answer of the lane's last call
local expiry              = KEYS[14] -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local totals              = KEYS[15] -- HASH  how many messages ever went which way
local history             = KEYS[16] -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local call        = tonumber(ARGV[2]) -- its number in the lane
local dedup_ms    = tonumber(ARGV[3]) -- how long an own id stays taken, 0: not at all
local max_pending = tonumber(ARGV[4]) -- cap on waiting messages, 0: none
local remember    = ARGV[5]           -- how many entries of the history to keep, 0: none is written
local each        = 6                 -- per message: id, how, record, delay_ms, at_ms

local width = 5

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

-- shared: who is new
local answer, fresh, marks, seen, ids, generated, taken = {}, {}, {}, {}, {}, {}, {}
local freed_marks = {}
local owns, makers, priorities, ttls = {}, {[''] = 0}, {[''] = 'normal'}, {}
local any_own, any_dead, any_quarantined = false, false, false
for i = each, #ARGV, width do
  local id, how = ARGV[i], ARGV[i + 1]
  if not priorities[how] then
    local own, maker, priority, ttl = string.match(how, '^([01]) (%d+) (%l+) ?(%d*)$')
    owns[how], makers[how], priorities[how] = own == '1', tonumber(maker), priority
    ttls[how] = tonumber(ttl)
  end
  if owns[how] then any_own = true else generated[#generated + 1] = id end
  ids[#ids + 1] = id
end
local remembered, taken_until = redis.call('ZCARD', recent) > 0, {}
if remembered then taken_until = redis.call('ZMSCORE', recent, unpack(ids)) end
if any_own then
  any_dead = redis.call('HLEN', dlq_payload) > 0
  any_quarantined = redis.call('HLEN', error_parse_payload) > 0
end
-- A generated id is there already only after an accident. So many are asked for in one call, which
-- moves no records; after the first surprise each is asked for by itself, since records may be big.
-- So is the id of a lone message, and each one for a user that may not read records.
local surprise = #generated == 1
  or redis.acl_check_cmd and not redis.acl_check_cmd('HMGET', payload, '')
for first = 1, #generated, 64 do
  if surprise then break end
  local upto = math.min(first + 63, #generated)
  local found = redis.call('HMGET', payload, unpack(generated, first, upto))
  for n = 1, #found do surprise = surprise or found[n] end
end
for n = 1, #ids do
  local i, id, status = each + (n - 1) * width, ids[n], '1'
  local how = ARGV[i + 1]
  local own, maker = owns[how], makers[how]
  local made, refused, freed
  if maker > 0 then
    local kept = redis.call('GET', KEYS[maker]) or ''
    made = tonumber(string.match(kept, '^%d+'))
    refused = tonumber(string.match(kept, '^%d+ full (%d+)$')) or 0
    local free_until = remembered and redis.call('ZMSCORE', recent, '!' .. id)[1]
    freed = free_until and tonumber(free_until) > now
  end
  if seen[id] or (own or surprise) and redis.call('HEXISTS', payload, id) == 1 then
    status = 'l'
  elseif own and any_dead and redis.call('HEXISTS', dlq_payload, id) == 1 then
    status = 'd'
  elseif own and any_quarantined and redis.call('HEXISTS', error_parse_payload, id) == 1 then
    status = 'q'
  elseif taken_until[n] and tonumber(taken_until[n]) > now and not freed then
    status = 'f'
  elseif made and not freed and made - refused >= tonumber(string.match(id, '%-(%d+)')) then
    status = 'f'
  else
    seen[id] = true
    fresh[#fresh + 1] = i
    if freed then freed_marks[#freed_marks + 1] = '!' .. id end
    local memory = maker > 0 and math.max(dedup_ms, 600000) or dedup_ms
    if own and memory > 0 then
      taken[memory] = taken[memory] or string.format('%.0f', now + memory)
      marks[#marks + 1] = taken[memory]
      marks[#marks + 1] = id
    end
  end
  answer[n] = status
end
local stale, recent_ttl = 0, 0
if remembered then -- counted, not listed: a producer may not see the ids of others
  stale = math.min(redis.call('ZCOUNT', recent, '-inf', now), 2 * #fresh + 10)
end
if #marks > 0 then recent_ttl = redis.call('PTTL', recent) end
answer = table.concat(answer)
-- end

local rung = redis.call('LLEN', doorbell_delay)
local soonest = math.huge
local due_times = {high = {}, normal = {}, low = {}}
for _, i in ipairs(fresh) do
  local due = tonumber(ARGV[i + 4]) or now + tonumber(ARGV[i + 3])
  local level = due_times[priorities[ARGV[i + 1]]]
  level[#level + 1] = due
  level[#level + 1] = ARGV[i]
  soonest = math.min(soonest, due)
end

-- Whether one is due before all of ours: counted, since a producer may not see the ids of others.
local earliest = math.huge
for _, key in ipairs(#fresh > 0 and {delay_tasks_high, delay_tasks, delay_tasks_low} or {}) do
  local before = redis.pcall('ZCOUNT', key, '-inf', soonest)
  if type(before) == 'number' and before > 0 then earliest = soonest end
end

-- shared: the sets that are needed must be sets
if #due_times.high > 0 then redis.call('ZCARD', delay_tasks_high) end
if #due_times.normal > 0 then redis.call('ZCARD', delay_tasks) end
if #due_times.low > 0 then redis.call('ZCARD', delay_tasks_low) end
-- end

-- shared: when the new ones expire
local expiries = {}
for n = 1, #fresh do
  local ttl = ttls[ARGV[fresh[n] + 1]]
  if ttl then
    expiries[#expiries + 1] = now + ttl
    expiries[#expiries + 1] = ARGV[fresh[n]]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
-- end

-- shared: how many wait, and whether the cap allows more
local full = false
if max_pending > 0 and #fresh > 0 then
  local waiting = #fresh
  for _, key in ipairs({pending_high, pending, pending_low}) do
    local length = redis.pcall('LLEN', key)
    waiting = waiting + (type(length) == 'number' and length or 0)
  end
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    local length = redis.pcall('ZCARD', key)
    waiting = waiting + (type(length) == 'number' and length or 0)
  end
  local passed = redis.pcall('SCARD', cancelled)
  full = waiting - (type(passed) == 'number' and passed or 0) > max_pending
  if full then answer = string.format('full %d', #answer) end
end
-- end

if full or #fresh == 0 then
  redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
  return answer
end

-- shared: store the records, stamped with the server's time
local stamp, records = string.format('{"created_at":%.0f,', now), {}
for n = 1, #fresh do
  local i = fresh[n]
  records[2 * n - 1] = ARGV[i]
  records[2 * n] = stamp .. ARGV[i + 2]
end
redis.call('HSET', payload, unpack(records))
-- end

-- shared: delay, and ring the scheduler if the earliest due time is new
if #due_times.high > 0 then redis.call('ZADD', delay_tasks_high, unpack(due_times.high)) end
if #due_times.normal > 0 then redis.call('ZADD', delay_tasks, unpack(due_times.normal)) end
if #due_times.low > 0 then redis.call('ZADD', delay_tasks_low, unpack(due_times.low)) end
if soonest < earliest and rung == 0 then redis.call('RPUSH', doorbell_delay, '1') end
-- end

-- shared: note when they expire
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
-- end

-- shared: remember own ids
-- A used mark goes to the front, to be removed with the stale ids: a producer may not use ZREM.
for n = 1, #freed_marks do redis.call('ZADD', recent, 0, freed_marks[n]) end
stale = stale + #freed_marks
if stale > 0 then redis.call('ZREMRANGEBYRANK', recent, 0, stale - 1) end
if #marks > 0 then
  redis.call('ZADD', recent, unpack(marks))
  redis.call('PEXPIRE', recent, math.max(recent_ttl, dedup_ms, 600000))
end
-- end

local what, by, done, about = 'delayed', '', {}, nil
for n = 1, #fresh do done[n] = ARGV[fresh[n]] end

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
