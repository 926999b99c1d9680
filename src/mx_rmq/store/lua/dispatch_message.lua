-- dispatch_message: pending -> processing
--
-- Hands up to max_count messages to a worker, each with a lease: a deadline, and a token that
-- only grows (also when a failover has lost the counter, since it is never behind the clock).
-- High goes before normal before low, but of every ten turns one offers normal first and one low
-- first, so that nobody starves. An id without a record, or with a lease, is dropped and counted.
-- The place of one that was cancelled is passed over, before anything is read of its message: by
-- now the id may be in use again, and then the next place is its. So that many in a row cost
-- little, a hundred go in one call.
-- A level whose key has a wrong type is passed over. With alone, nothing is given while a message
-- is in processing: so a worker that handles its batch one by one keeps the order. One reply holds
-- 8 MiB of records, or a single message, so that it arrives. When messages are left behind, the
-- doorbell is rung for the next worker.
--
-- A call that takes nothing leaves a receipt too: else a copy of it that arrives late would lease
-- messages to a worker that was told there are none, and nothing would run them.
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
local cancelled      = KEYS[9]  -- SET  ids of which one place in a pending list does not count
local expiry         = KEYS[10] -- ZSET  id -> when it expires (ms), if it waits and has a ttl
local receipt        = KEYS[11] -- STRING  number and answer of the lane's last call
local totals         = KEYS[12] -- HASH  how many messages ever went which way
local history        = KEYS[13] -- STREAM  what has happened, newest last

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- its number in the lane
local worker    = ARGV[3]           -- who takes them
local max_count = tonumber(ARGV[4]) -- how many at the most
local lease_ms  = tonumber(ARGV[5]) -- how long until the leases run out
local alone     = ARGV[6]           -- '1': give nothing while anybody holds something
local remember  = ARGV[7]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local reply = {string.format('%.0f', now)}
local lease_end = ':' .. worker
local noted = redis.call('GET', receipt) or ''
local last, first_answer = string.match(noted, '^(%d+) ()')
if last and tonumber(last) >= call then
  -- The answer is the first token, then for each message the length of its id and the id.
  local from, to, token = string.find(noted, '^(%d+) ', first_answer)
  local length
  if from then from, to, length = string.find(noted, '^(%d+) ', to + 1) end
  while from do
    local id, number = string.sub(noted, to + 1, to + length), string.format('%.0f', token)
    local record = redis.call('HGET', payload, id)
    if record and redis.call('HGET', processing, id) == number .. lease_end then
      reply[#reply + 1] = id
      reply[#reply + 1] = number
      reply[#reply + 1] = record
    end
    token = token + 1
    from, to, length = string.find(noted, '^(%d+) ', to + length + 1)
  end
  return reply
end

local paused, last_token, turn, dropped_before =
  unpack(redis.call('HMGET', meta, 'paused', 'token', 'turn', 'dropped'))
local open = not paused and not (alone == '1' and redis.call('HLEN', processing) > 0)

local levels = {pending_high, pending, pending_low}
local left, take = {}, {0, 0, 0}
for level, key in ipairs(levels) do
  local length = open and redis.pcall('LLEN', key)
  left[level] = type(length) == 'number' and length or 0
end

-- Where places are to be passed over, `kept` are the others of the last ones, and `behind` is how
-- many stand before these.
local kept, behind, read, surplus, gone = {}, {0, 0, 0}, {0, 0, 0}, {}, {}
local places = open and redis.pcall('SCARD', cancelled)
if type(places) == 'number' and places > 0 then
  for level, key in ipairs(levels) do
    if left[level] > 0 then
      local tail = redis.call('LRANGE', key, -max_count - 100, '-1')
      local marks, others = redis.call('SMISMEMBER', cancelled, unpack(tail)), {}
      for i = #tail, 1, -1 do
        local id = tail[i]
        if marks[i] == 1 and not gone[id] then
          gone[id], surplus[#surplus + 1] = true, id
        else
          others[#others + 1] = id
        end
      end
      kept[level], read[level], behind[level] = others, #tail, left[level] - #tail
      left[level] = #others
    end
  end
end

local usual, offers = {1, 2, 3}, {[4] = {2, 1, 3}, [9] = {3, 1, 2}}
turn = math.floor(tonumber(turn) or 0)
if not (turn >= 0 and turn < 10) then turn = 0 end -- also if it is no number at all
for _ = 1, math.min(max_count, left[1] + left[2] + left[3]) do
  local offer = offers[turn] or usual
  local level = offer[1]
  if left[level] == 0 then level = offer[2] end
  if left[level] == 0 then level = offer[3] end
  left[level], take[level] = left[level] - 1, take[level] + 1
  turn = (turn + 1) % 10
end

local ids, count = {}, 0
for level, key in ipairs(levels) do
  if kept[level] then
    for i = 1, take[level] do ids[count + i] = kept[level][i] end
    count = count + take[level]
  elseif take[level] > 0 then
    local tail = redis.call('LRANGE', key, -take[level], '-1')
    for i = #tail, 1, -1 do
      count = count + 1
      ids[count] = tail[i]
    end
  end
end

-- shared: the records of the first ids, as many as fit into 8 MiB; read in growing steps
local records, bytes, fit, upto, step = {}, 0, 0, 0, 8
while fit == upto and fit < #ids do
  upto = math.min(fit + step, #ids)
  local found = redis.call('HMGET', payload, unpack(ids, fit + 1, upto))
  for i = 1, #found do
    local record = found[i]
    if record then bytes = bytes + #record end
    if bytes > 8388608 and fit > 0 then break end
    fit = fit + 1
    records[fit] = record
  end
  step = step * 2
end
-- end

local held = count > 0 and redis.call('HMGET', processing, unpack(ids)) or {}
local rung = redis.call('LLEN', doorbell)
local leased = redis.call('ZCARD', expire_monitor)
local expiring = redis.pcall('ZCARD', expiry)

local too_many = count - fit
for level = 3, 1, -1 do
  local back = math.min(too_many, take[level])
  left[level], take[level], too_many = left[level] + back, take[level] - back, too_many - back
end

-- To format a number takes longer than anything else in this loop. So the deadline, the same for
-- all, is formatted once; a token for every ten, of which each has its last digit; and a length
-- when it is not the one before.
last_token = math.floor(tonumber(last_token) or 0)
if not (last_token < 9e15) then last_token = 0 end -- nan, or so large that it cannot grow
local token = math.max(last_token + 1, math.min(now, 8e12) * 1000)
local deadline = string.format('%.0f', now + lease_ms)
local digits = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
local digit, tens, number, length, length_text = token % 10, nil, nil, nil, nil
local leases, deadlines, answer, seen, taken, given, dropped = {}, {}, {}, {}, {}, 0, 0
for i = 1, fit do
  local id, record = ids[i], records[i]
  if record and not held[i] and not seen[id] then
    if digit == 10 then digit, tens = 0, nil end
    tens = tens or string.format('%.0f', (token - digit) / 10)
    number = tens .. digits[digit + 1]
    if #id ~= length then length, length_text = #id, string.format('%d ', #id) end
    if given == 0 then answer[1] = number .. ' ' end
    local two, three = 2 * given, 3 * given
    seen[id], taken[given + 1] = true, id
    leases[two + 1] = id
    leases[two + 2] = number .. lease_end
    deadlines[two + 1] = deadline
    deadlines[two + 2] = id
    reply[three + 2] = id
    reply[three + 3] = number
    reply[three + 4] = record
    answer[two + 2] = length_text
    answer[two + 3] = id
    token, digit, given = token + 1, digit + 1, given + 1
  else
    dropped = dropped + 1
  end
end
answer = table.concat(answer)

-- Removes nothing, but at maxmemory Redis allows it, and then the receipt.
if count == 0 then redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) end
for level, key in ipairs(levels) do
  local others = kept[level]
  if others and #others < read[level] then
    local back = {}
    for i = #others, take[level] + 1, -1 do back[#back + 1] = others[i] end
    redis.call('LTRIM', key, '0', -read[level] - 1)
    if #back > 0 then redis.call('RPUSH', key, unpack(back)) end
  elseif take[level] > 0 then
    redis.call('LTRIM', key, '0', -take[level] - 1)
  end
end
if #surplus > 0 then redis.call('SREM', cancelled, unpack(surplus)) end
for level = 1, 3 do left[level] = left[level] + behind[level] end
if left[1] + left[2] + left[3] > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

if fit > 0 and type(expiring) == 'number' and expiring > 0 then
  redis.call('ZREM', expiry, unpack(ids, 1, fit))
end
if given > 0 then
  -- Redis keeps a small hash or sorted set in one flat block and walks it for every id, until
  -- something in it is longer than 64 bytes. So before many come together, something long comes,
  -- and goes again: a padded lease, since its token is new and so it is nobody's id.
  local many = leased + given > 32
  local long = many and string.format('%65s', leases[2])
  local flat_hash = many and leased < 512 and #leases[2] < 65
  local flat_set = many and leased < 128
  if flat_hash then redis.call('HSET', processing, long, '') end
  if flat_set then redis.call('ZADD', expire_monitor, '0', long) end
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', expire_monitor, unpack(deadlines))
  if flat_hash then redis.call('HDEL', processing, long) end
  if flat_set then redis.call('ZREM', expire_monitor, long) end
end
if count > 0 then
  redis.call('HSET', meta, 'token', number or string.format('%.0f', token - 1), 'turn', turn)
end
if dropped > 0 then
  redis.call('HSET', meta, 'dropped', (tonumber(dropped_before) or 0) + dropped)
end

local what, by, done, about = 'dispatched', worker, taken, nil

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

return reply
