-- dispatch_message: pending -> processing
-- Leases up to max_count messages to a worker, each with a deadline and a token that only grows.
-- High comes before normal before low, but of every ten turns one offers normal first and one low
-- first, so that no level starves. An id without a record, or with a lease, is dropped and counted.
-- The place of a cancelled message is skipped, up to a hundred per call; if its id is in use again,
-- its next place counts. One reply holds 8 MiB of records, or a single message. If messages are
-- left, the doorbell rings for the next worker. A level with a key of a wrong type is skipped.
-- Returns  now (ms), then for each message: id, token, record. A paused topic gives none. The same
--          call again gives the same messages, as far as the worker still holds them.
-- Cost     O(log P) per message, P in processing
-- keys: payload | pending* | cancelled expiry | processing expire_monitor | doorbell meta
-- keys: receipt totals history

local call      = tonumber(ARGV.call)      -- this call's number in its lane
local worker    = ARGV.worker              -- who takes them
local max_count = tonumber(ARGV.max_count) -- how many at most
local lease_ms  = tonumber(ARGV.lease_ms)  -- how long until the leases run out
local alone     = ARGV.alone               -- '1': none while one is in processing, to keep order
-- use: clock, history

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

-- Where places are skipped, `kept` are the other ids at the end of the list, and `behind` is how
-- many places come before these.
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

-- use: records_that_fit

local held = count > 0 and redis.call('HMGET', processing, unpack(ids)) or {}
local rung = redis.call('LLEN', doorbell)
local leased = redis.call('ZCARD', expire_monitor)
local expiring = redis.pcall('ZCARD', expiry)

local too_many = count - fit
for level = 3, 1, -1 do
  local back = math.min(too_many, take[level])
  left[level], take[level], too_many = left[level] + back, take[level] - back, too_many - back
end

-- use: next_token

-- Formatting a number is the slowest part of this loop. So the deadline is formatted once, a token
-- once per ten (only its last digit changes), and a length when it changes.
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

if count == 0 then redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) end -- works at maxmemory
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
  -- Redis keeps a small hash or sorted set in one flat block and walks it for every id, until an
  -- entry is longer than 64 bytes. So before many ids are added, a long entry is added and removed
  -- again: a padded lease, which is no message's id because its token is new.
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

note('dispatched', worker, taken)
-- use: receipt
return reply
