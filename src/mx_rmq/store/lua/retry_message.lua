-- retry_message: processing -> delayed
--
-- Lets messages wait for delay_ms, each with the record that the caller passes. Failed ones are
-- retried; those that only a newer release can read are postponed. How long to wait is the caller's
-- decision.
--
-- Returns  as complete_message
-- Cost     O(log P + log D) a message, P in processing, D delayed

local payload          = KEYS[1]  -- HASH  id -> record
local processing       = KEYS[2]  -- HASH  id -> lease, token:worker
local expire_monitor   = KEYS[3]  -- ZSET  id -> lease deadline (ms)
local delay_tasks_high = KEYS[4]  -- ZSET  id -> due (ms)
local delay_tasks      = KEYS[5]  -- ZSET  id -> due (ms)
local delay_tasks_low  = KEYS[6]  -- ZSET  id -> due (ms)
local doorbell_delay   = KEYS[7]  -- LIST  at most one ring: an earlier due time
local expiry           = KEYS[8]  -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local receipt          = KEYS[9]  -- STRING  number and answer of the lane's last call
local totals           = KEYS[10] -- HASH  how many messages ever went which way
local history          = KEYS[11] -- STREAM  what has happened, newest last

local now_ms   = ARGV[1]           -- the time (ms), or '' for the server's
local call     = tonumber(ARGV[2]) -- its number in the lane
local worker   = ARGV[3]           -- who holds the leases
local remember = ARGV[4]           -- how many entries of the history to keep, 0: none is written
local what     = ARGV[5]           -- what the history calls it: retried or postponed
local each     = 6 -- per message: id, token, record, priority, delay_ms, expires_ms, why

local width = 7

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

-- shared: which are still the worker's
local ids, answer, seen = {}, {}, {}
for i = each, #ARGV, width do ids[#ids + 1] = ARGV[i] end
local leases = redis.call('HMGET', processing, unpack(ids))
redis.call('ZCARD', expire_monitor)
local mine, held, count, lease_end = {}, {}, 0, ':' .. worker
for n = 1, #ids do
  local id, at = ids[n], each + (n - 1) * width
  if leases[n] == ARGV[at + 1] .. lease_end and not seen[id] then
    count = count + 1
    seen[id], mine[count], held[count], answer[n] = true, at, id, '1'
  else
    answer[n] = '0'
  end
end
answer = table.concat(answer)
if count == 0 then return answer end
-- end

-- shared: earliest due time so far
local earliest = math.huge
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then earliest = math.min(earliest, tonumber(first[2])) end
end
local rung = redis.call('LLEN', doorbell_delay)
-- end

redis.call('HLEN', payload)
local expiries = {}
for _, i in ipairs(mine) do
  if ARGV[i + 5] ~= '' then
    expiries[#expiries + 1] = ARGV[i + 5]
    expiries[#expiries + 1] = ARGV[i]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
local soonest, records, about = math.huge, {}, {}
local due_times = {high = {}, normal = {}, low = {}}
for _, i in ipairs(mine) do
  local due = now + tonumber(ARGV[i + 4])
  local level = due_times[ARGV[i + 3]]
  level[#level + 1] = due
  level[#level + 1] = ARGV[i]
  records[#records + 1] = ARGV[i]
  records[#records + 1] = ARGV[i + 2]
  soonest = math.min(soonest, due)
  about[#about + 1] = ARGV[i + 4] .. ' ' .. ARGV[i + 6]
end

-- shared: the sets that are needed must be sets
if #due_times.high > 0 then redis.call('ZCARD', delay_tasks_high) end
if #due_times.normal > 0 then redis.call('ZCARD', delay_tasks) end
if #due_times.low > 0 then redis.call('ZCARD', delay_tasks_low) end
-- end

-- shared: end the leases
redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
-- end

redis.call('HSET', payload, unpack(records))

-- shared: delay, and ring the scheduler if the earliest due time is new
if #due_times.high > 0 then redis.call('ZADD', delay_tasks_high, unpack(due_times.high)) end
if #due_times.normal > 0 then redis.call('ZADD', delay_tasks, unpack(due_times.normal)) end
if #due_times.low > 0 then redis.call('ZADD', delay_tasks_low, unpack(due_times.low)) end
if soonest < earliest and rung == 0 then redis.call('RPUSH', doorbell_delay, '1') end
-- end

-- shared: note when they expire
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
-- end

local by, done = worker, held

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
