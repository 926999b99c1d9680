-- release_message: processing -> pending
--
-- Hands unfinished work back at shutdown: to the front of its level, in the order in which it
-- was taken, its attempt not counted. Own messages only.
--
-- Returns  as complete_message
-- Cost     O(log P) a message, P in processing

local pending_high   = KEYS[1]  -- LIST  ids, newest first
local pending        = KEYS[2]  -- LIST  ids, newest first
local pending_low    = KEYS[3]  -- LIST  ids, newest first
local processing     = KEYS[4]  -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[5]  -- ZSET  id -> lease deadline (ms)
local doorbell       = KEYS[6]  -- LIST  at most one ring: something is pending
local expiry         = KEYS[7]  -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local receipt        = KEYS[8]  -- STRING  number and answer of the lane's last call
local totals         = KEYS[9]  -- HASH  how many messages ever went which way
local history        = KEYS[10] -- STREAM  what has happened, newest last

local call     = tonumber(ARGV[1]) -- its number in the lane
local worker   = ARGV[2]           -- who holds the leases
local remember = ARGV[3]           -- how many entries of the history to keep, 0: none is written
local each     = 4                 -- per message: id, token, priority, expires_ms

local width = 4

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

local front, expiries = {high = {}, normal = {}, low = {}}, {}
for n = #mine, 1, -1 do
  local ids = front[ARGV[mine[n] + 2]]
  ids[#ids + 1] = ARGV[mine[n]]
  if ARGV[mine[n] + 3] ~= '' then
    expiries[#expiries + 1] = ARGV[mine[n] + 3]
    expiries[#expiries + 1] = ARGV[mine[n]]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
if #front.high > 0 then redis.call('LLEN', pending_high) end
if #front.normal > 0 then redis.call('LLEN', pending) end
if #front.low > 0 then redis.call('LLEN', pending_low) end
local rung = redis.call('LLEN', doorbell)

-- shared: end the leases
redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
-- end

if #front.high > 0 then redis.call('RPUSH', pending_high, unpack(front.high)) end
if #front.normal > 0 then redis.call('RPUSH', pending, unpack(front.normal)) end
if #front.low > 0 then redis.call('RPUSH', pending_low, unpack(front.low)) end
if rung == 0 then redis.call('RPUSH', doorbell, '1') end

-- shared: note when they expire
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
-- end

local what, by, done, about = 'released', worker, held, nil

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
