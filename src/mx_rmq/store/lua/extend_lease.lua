-- extend_lease: processing -> processing
--
-- Moves the deadlines of a worker's leases: of the messages that it runs and of those that still
-- wait in its local slots. Harmless to repeat, so it needs no receipt.
--
-- Returns  a string, a digit a message: 1 extended, 0 no longer the worker's
-- Cost     O(log P) a message, P in processing

local processing     = KEYS[1]  -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[2]  -- ZSET  id -> lease deadline (ms)

local now_ms   = ARGV[1]           -- the time (ms), or '' for the server's
local worker   = ARGV[2]           -- who holds the leases
local lease_ms = tonumber(ARGV[3]) -- how long until the leases run out
local each     = 4                 -- per message: id, token

local width = 2

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
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

local deadline, deadlines = string.format('%.0f', now + lease_ms), {}
for n = 1, count do
  deadlines[2 * n - 1] = deadline
  deadlines[2 * n] = held[n]
end

-- shared: removes nothing, but at maxmemory Redis allows it, and then the writes that follow
redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0)
-- end

redis.call('ZADD', expire_monitor, unpack(deadlines))
return answer
