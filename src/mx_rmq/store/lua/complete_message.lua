-- complete_message: processing -> (gone)
--
-- Removes what a worker has handled: lease, deadline and record. Only the holder of the lease
-- may: a worker that has lost it changes nothing and is told so.
--
-- Returns  a string, a digit a message: 1 done, 2 done when this call came the first time,
--          0 no longer the worker's
-- Cost     O(log P) a message, P in processing

local payload        = KEYS[1]  -- HASH  id -> record
local processing     = KEYS[2]  -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[3]  -- ZSET  id -> lease deadline (ms)
local receipt        = KEYS[4]  -- STRING  number and answer of the lane's last call
local totals         = KEYS[5]  -- HASH  how many messages ever went which way
local history        = KEYS[6]  -- STREAM  what has happened, newest last

local call     = tonumber(ARGV[1]) -- its number in the lane
local worker   = ARGV[2]           -- who holds the leases
local remember = ARGV[3]           -- how many entries of the history to keep, 0: none is written
local each     = 4                 -- per message: id, token

local width = 2

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

redis.call('HLEN', payload)

-- shared: end the leases
redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
-- end

redis.call('HDEL', payload, unpack(held))

local what, by, done, about = 'completed', worker, held, nil

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
