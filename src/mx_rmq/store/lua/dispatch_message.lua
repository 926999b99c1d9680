-- dispatch_message: pending -> processing
--
-- Hands up to max_count messages to a worker, each with a lease: a deadline, and a token that
-- only grows (also when a failover has lost the counter, since it is never behind the clock).
-- High goes before normal before low, but of every ten turns one offers normal first and one low
-- first, so that nobody starves. An id without a record, or with a lease, is dropped and counted.
-- A level whose key has a wrong type is passed over. One reply holds 8 MiB of records, or a single
-- message, so that it arrives. When messages are left behind, the doorbell is rung for the next
-- worker.
--
-- Returns  now (ms), then for each message: id, token, record. A paused topic gives none. The
--          same call again gives the same messages, as far as they are still the worker's.
-- Cost     O(log P) a message, P in processing

local payload        = KEYS[1]  -- HASH  id -> record
local pending_high   = KEYS[2]  -- LIST  ids, newest first
local pending        = KEYS[3]  -- LIST  ids, newest first
local pending_low    = KEYS[4]  -- LIST  ids, newest first
local processing     = KEYS[5]  -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[6]  -- ZSET  id -> lease deadline (ms)
local doorbell       = KEYS[7]  -- LIST  at most one ring: something is pending
local meta           = KEYS[8]  -- HASH  token, turn, paused, dropped, tick
local receipt        = KEYS[9]  -- STRING  number and answer of the lane's last call

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- its number in the lane
local worker    = ARGV[3]           -- who takes them
local max_count = tonumber(ARGV[4]) -- how many at the most
local lease_ms  = tonumber(ARGV[5]) -- how long until the leases run out

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local reply = {string.format('%.0f', now)}
local last, first_answer = string.match(redis.call('GET', receipt) or '', '^(%d+) (.*)$')
if last and tonumber(last) >= call then
  local from, to, token, length = string.find(first_answer, '^(%d+) (%d+) ')
  while from do
    local id = string.sub(first_answer, to + 1, to + length)
    local record = redis.call('HGET', payload, id)
    if record and redis.call('HGET', processing, id) == token .. ':' .. worker then
      reply[#reply + 1] = id
      reply[#reply + 1] = token
      reply[#reply + 1] = record
    end
    from, to, token, length = string.find(first_answer, '^(%d+) (%d+) ', to + length + 1)
  end
  return reply
end

local paused, last_token, turn, dropped_before =
  unpack(redis.call('HMGET', meta, 'paused', 'token', 'turn', 'dropped'))
if paused then return reply end

local levels = {pending_high, pending, pending_low}
local left, take = {}, {0, 0, 0}
for level, key in ipairs(levels) do
  local length = redis.pcall('LLEN', key)
  left[level] = type(length) == 'number' and length or 0
end
local offers = {[4] = {2, 1, 3}, [9] = {3, 1, 2}}
turn = tonumber(turn) or 0
for _ = 1, math.min(max_count, left[1] + left[2] + left[3]) do
  for _, level in ipairs(offers[turn] or {1, 2, 3}) do
    if left[level] > 0 then
      left[level], take[level] = left[level] - 1, take[level] + 1
      break
    end
  end
  turn = (turn + 1) % 10
end

local ids, level_of = {}, {}
for level, key in ipairs(levels) do
  if take[level] > 0 then
    local tail = redis.call('LRANGE', key, -take[level], -1)
    for i = #tail, 1, -1 do
      ids[#ids + 1] = tail[i]
      level_of[#ids] = level
    end
  end
end
if #ids == 0 then return reply end

-- shared: the records of the first ids, as many as fit into 8 MiB; read in growing steps
local records, bytes, fit, upto, step = {}, 0, 0, 0, 8
repeat
  local first = fit + 1
  upto = math.min(fit + step, #ids)
  for i, record in ipairs(redis.call('HMGET', payload, unpack(ids, first, upto))) do
    bytes = bytes + #(record or '')
    if bytes > 8388608 and fit > 0 then break end
    fit = first + i - 1
    records[fit] = record
  end
  step = step * 2
until fit < upto or fit == #ids
-- end

local held = redis.call('HMGET', processing, unpack(ids))
local rung = redis.call('LLEN', doorbell)
redis.call('ZCARD', expire_monitor)

for i = #ids, fit + 1, -1 do
  local level = level_of[i]
  left[level], take[level], ids[i] = left[level] + 1, take[level] - 1, nil
end

local token = math.max((tonumber(last_token) or 0) + 1, math.min(now, 8e12) * 1000)
local leases, deadlines, answer, seen, dropped = {}, {}, {}, {}, 0
for i, id in ipairs(ids) do
  if records[i] and not held[i] and not seen[id] then
    local number = string.format('%.0f', token)
    seen[id] = true
    leases[#leases + 1] = id
    leases[#leases + 1] = number .. ':' .. worker
    deadlines[#deadlines + 1] = now + lease_ms
    deadlines[#deadlines + 1] = id
    reply[#reply + 1] = id
    reply[#reply + 1] = number
    reply[#reply + 1] = records[i]
    answer[#answer + 1] = number .. ' ' .. #id .. ' ' .. id
    token = token + 1
  else
    dropped = dropped + 1
  end
end
answer = table.concat(answer)

for level, key in ipairs(levels) do
  if take[level] > 0 then redis.call('LTRIM', key, 0, -take[level] - 1) end
end
if #leases > 0 then
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', expire_monitor, unpack(deadlines))
end
redis.call('HSET', meta, 'token', string.format('%.0f', token - 1), 'turn', turn)
if dropped > 0 then
  redis.call('HSET', meta, 'dropped', (tonumber(dropped_before) or 0) + dropped)
end
if left[1] + left[2] + left[3] > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

-- shared: write the receipt
redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', 600000)
-- end

return reply
