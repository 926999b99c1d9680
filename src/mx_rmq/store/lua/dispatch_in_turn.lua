-- dispatch_in_turn: pending -> processing, in turn and within limits
-- Does what dispatch_message does where messages have keys or the topic is limited. Each key has a
-- line. The line with the least turn gives its next message, then its turn moves back by 1/weight.
-- Messages without a key are one line among the others. A line is blocked if its key has no free
-- place, too few tokens in its bucket, or a pause: it leaves the ring until that time has come, or
-- until one of its messages is settled. The whole topic is blocked under the key ''. Whatever was
-- blocked is judged again here, so waking it too often does no harm.
-- Someone must come back when the next block ends. That is the caller, unless another worker has
-- been told already: see `wake_at`. A bucket is stored as the time at which it is full.
-- Returns  as dispatch_message, but in second place: the ms after which the caller must ask again,
--          -1: it need not, -2: call dispatch_message, neither keys nor limits are in use
-- Cost     O(log N) per message and per key looked at, N waiting
-- keys: payload | pending* | lines ring blocked keyed running | limits buckets | delay_tasks*
-- keys: cancelled expiry | processing expire_monitor | doorbell meta | receipt totals history

local max_count = tonumber(ARGV.max_count) -- how many at most
local lease_ms  = tonumber(ARGV.lease_ms)  -- how long until the leases run out
local alone     = ARGV.alone               -- '1': none while one is in processing, to keep order
local declared  = ARGV.declared            -- the limits that the handler declares, or ''
-- use: clock, history, same_dispatch

local paused, last_token, turn, dropped_before, noted_limits, clock_ahead, full_at, plain_turn,
  wake_at = unpack(redis.call('HMGET', meta, 'paused', 'token', 'turn', 'dropped', 'limits',
  'clock_ahead', 'bucket', 'plain_turn', 'wake_at'))
local noted_ahead = tonumber(clock_ahead) or 0
-- use: line_clock

-- The limits in force: what an operator has set, else what the handler declares.
local most, interval, burst, key_most, key_interval, key_burst =
  string.match(declared, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
local any_set, as_set = redis.call('HLEN', limits) > 0, '^(%S+) (%S+) (%S+) (%S+) (%S+)'
local topic_set = any_set and redis.call('HGET', limits, '') or ''
local set_most, set_interval, set_burst, _, stop = string.match(topic_set, as_set)
most = tonumber(set_most) or tonumber(most)
if tonumber(set_interval) then interval, burst = set_interval, set_burst end
interval, burst = tonumber(interval), tonumber(burst)
key_most, key_interval, key_burst = tonumber(key_most), tonumber(key_interval), tonumber(key_burst)

local leased = redis.call('HLEN', processing)
local look_again = (math.floor(at / 60000) + 2) * 60000 -- all at once, in case nothing wakes them
local room, closed = paused and 0 or max_count, nil -- closed: when to look at the topic again
if (tonumber(stop) or 0) > at then
  room, closed = 0, tonumber(stop)
elseif most and leased >= most or alone == '1' and leased > 0 then
  room, closed = 0, look_again
end
if most then room = math.min(room, math.max(0, most - leased)) end
local function tokens_at(full, per, depth)
  return depth - math.max(0, (tonumber(full) or 0) - at) / per + 1e-6 -- rounding costs no token
end
local tokens = interval and tokens_at(full_at, interval, burst) or math.huge

-- The line of the messages without a key: `plain_ids`, as far as there is room.
local open = true
-- use: pending_levels
turn = math.floor(tonumber(turn) or 0)
if not (turn >= 0 and turn < 10) then turn = 0 end -- also if it is no number at all
local level_of, wanted, plain_ids = {}, {0, 0, 0}, {}
local plain_left = left[1] + left[2] + left[3]
for n = 1, math.min(room, plain_left) do
  local offer = offers[(turn + n - 1) % 10] or usual
  local level = offer[1]
  if left[level] == wanted[level] then level = offer[2] end
  if left[level] == wanted[level] then level = offer[3] end
  level_of[n], wanted[level] = level, wanted[level] + 1
end
for level, key in ipairs(levels) do
  local tail, from = kept[level], 0
  if not tail and wanted[level] > 0 then
    local newest_first = redis.call('LRANGE', key, -wanted[level], '-1')
    tail = {}
    for i = #newest_first, 1, -1 do tail[#tail + 1] = newest_first[i] end
  end
  for n = 1, #level_of do
    if level_of[n] == level then
      from = from + 1
      plain_ids[n] = tail[from]
    end
  end
end
local costs = interval and #plain_ids > 0 and redis.call('HMGET', keyed, unpack(plain_ids)) or {}

-- The lines that may come next, by turn. queue[first] is the next one.
local queue, first, known, judged = {}, 1, {}, {}
local base = tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0
local any_bucket = redis.call('ZCARD', buckets) > 0
redis.call('ZCARD', running)

local function enqueue(line)
  local spot = #queue + 1
  while spot > first and queue[spot - 1].turn > line.turn do
    queue[spot], spot = queue[spot - 1], spot - 1
  end
  queue[spot] = line
end

local function enter(keys, turns, woken_at)
  local sets = any_set and redis.call('HMGET', limits, unpack(keys)) or {}
  local full = any_bucket and redis.call('ZMSCORE', buckets, unpack(keys)) or {}
  for n, key in ipairs(keys) do
    local line = {
      key = key, limit = key_most, interval = key_interval, burst = key_burst, step = 1,
      full_at = full[n], woken_at = woken_at and tonumber(woken_at[n]), taken = 0, spent = 0,
    }
    if sets[n] then
      local own_most, own_interval, own_burst, weight, until_ms = string.match(sets[n], as_set)
      line.limit, line.stop = tonumber(own_most) or line.limit, tonumber(until_ms)
      line.step = 1 / (tonumber(weight) or 1)
      if tonumber(own_interval) then
        line.interval, line.burst = tonumber(own_interval), tonumber(own_burst)
      end
    end
    line.start = turns and tonumber(turns[n]) or base + line.step
    line.turn = line.start
    if not known[key] then enqueue(line) end
    known[key] = true
  end
end

-- Finds the next message of a line: its `member`, nil if there is none. `blocked` says until when
-- it may not start. One more message than can be taken is read, to know whether the line is empty.
local function advance(line)
  if line.at == #line.heads and line.unread then
    local share = math.min(line.places, math.ceil(room / math.max(1, #queue - first + 1))) + 1
    local after = line.member and '(' .. line.member or '[' .. line.key .. '\t'
    line.heads, line.at = redis.call('ZRANGEBYLEX', lines, after, '(' .. line.key .. '\n',
      'LIMIT', '0', share), 0
    line.unread = #line.heads == share
  end
  line.at = line.at + 1
  line.member = line.heads[line.at]
  if not line.member then return end
  local gap = string.find(line.member, ' ', #line.key + 20, true) or #line.member
  line.id = string.sub(line.member, gap + 1)
  line.cost = tonumber(string.sub(line.member, #line.key + 20, gap - 1)) or 1
  local need = line.interval and math.min(line.cost, line.burst)
  if line.places <= 0 then
    line.blocked = look_again
  elseif need and line.tokens < need then
    line.blocked = at + (need - line.tokens) * line.interval
  end
end

local stale = {}
local function judge(line)
  local least, beyond = '[' .. line.key .. '\t', '(' .. line.key .. '\n'
  judged[#judged + 1] = line
  line.heads, line.at, line.unread, line.places, line.tokens = {}, 0, true, math.huge, math.huge
  if line.limit then
    local busy = redis.call('ZLEXCOUNT', running, least, beyond)
    -- Nothing woke it in time: a worker of an older release may have settled its messages.
    if busy >= line.limit and (line.woken_at or 0) > 0 then
      for _, member in ipairs(redis.call('ZRANGEBYLEX', running, least, beyond, 'LIMIT', 0, 100)) do
        local id = string.sub(member, #line.key + 2)
        local there = redis.call('HEXISTS', processing, id) == 1
        for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
          there = redis.call('ZSCORE', key, id) or there
        end
        if not there then busy, stale[#stale + 1] = busy - 1, member end
      end
    end
    line.places = math.max(0, line.limit - busy)
  end
  if line.interval then line.tokens = tokens_at(line.full_at, line.interval, line.burst) end
  local snoozed = any_bucket and redis.call('ZSCORE', buckets, line.key .. '\t')
  line.stop = math.max(line.stop or 0, tonumber(snoozed or 0))
  advance(line)
  if line.stop > at then line.blocked = line.stop end
end

local due, woken, woken_at = {}, {}, {}
if room > 0 then
  due = redis.call('ZRANGEBYSCORE', blocked, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 200)
end
for n = 1, #due, 2 do
  if due[n] ~= '' then woken[#woken + 1], woken_at[#woken_at + 1] = due[n], due[n + 1] end
end
if #woken > 0 then enter(woken, nil, woken_at) end
local plain = {turn = math.max(base, math.min(tonumber(plain_turn) or base, base + 1)), step = 1}
if #plain_ids > 0 then enqueue(plain) end

local picks, plain_taken, loaded, unread, last_turn = {}, 0, 0, room > 0, -math.huge
while #picks < room and not closed do
  local line = queue[first]
  if unread and (not line or line.turn > last_turn) and #judged < 1000 then
    local some = redis.call('ZRANGE', ring, loaded, loaded + room, 'WITHSCORES')
    local keys, turns = {}, {}
    for n = 1, #some, 2 do keys[#keys + 1], turns[#turns + 1] = some[n], some[n + 1] end
    loaded, unread, last_turn = loaded + #keys, #keys > room, tonumber(turns[#turns])
    if #keys > 0 then enter(keys, turns) end
  elseif not line then
    break
  elseif line ~= plain and not line.heads then
    judge(line)
    if line.blocked or not line.member then first = first + 1 end
  else
    if line == plain then
      line.id = plain_ids[plain_taken + 1]
      line.cost = tonumber(string.match(costs[plain_taken + 1] or '', ' (%d+) $')) or 1
    end
    local need = burst and math.min(line.cost, burst) or 0
    if tokens < need then
      closed = at + (need - tokens) * interval
    else
      picks[#picks + 1] = {line, line.id, line.cost, line.member}
      first, tokens, line.turn = first + 1, tokens - line.cost, line.turn + line.step
      if line == plain then
        plain_taken = plain_taken + 1
        if plain_taken < #plain_ids then enqueue(line) end
      else
        line.places, line.tokens = line.places - 1, line.tokens - line.cost
        advance(line)
        if line.member and not line.blocked then enqueue(line) end
      end
    end
  end
end

local ids, count = {}, #picks
for n = 1, count do ids[n] = picks[n][2] end
-- use: records_that_fit
local held = count > 0 and redis.call('HMGET', processing, unpack(ids)) or {}
local rung = redis.call('LLEN', doorbell)
local expiring = redis.pcall('ZCARD', expiry)
local in_lines = redis.call('ZCARD', lines)
local bucket_ttl, full_ones = redis.call('PTTL', buckets), redis.call('ZCOUNT', buckets, '-inf', at)
redis.call('ZCARD', expire_monitor)
local later = redis.call('ZRANGEBYSCORE', blocked, string.format('(%.0f', at), '+inf', 'WITHSCORES',
  'LIMIT', 0, 2)
local next_block = tonumber(later[1] == '' and later[4] or later[2]) or math.huge
if later[1] == '' and not later[4] then next_block = math.huge end

-- What the messages that fit leave behind.
local from_lines, running_now, spent, plain_count = {}, {}, 0, 0
for n = 1, count do
  local line, id, cost, member = unpack(picks[n])
  if n > fit then
    line.blocked, line.member = nil, member
  else
    spent = spent + cost
    if line == plain then
      plain_count = plain_count + 1
    else
      line.taken, line.spent = line.taken + 1, line.spent + cost
      from_lines[#from_lines + 1] = member
      if records[n] and not held[n] then
        running_now[#running_now + 1] = '0'
        running_now[#running_now + 1] = line.key .. '\t' .. id
      end
    end
  end
end
for n = 1, plain_count do take[level_of[n]] = take[level_of[n]] + 1 end
turn = (turn + plain_count) % 10

local turns, blocks, out_of_ring, fills, filled = {}, {}, {}, {}, 0
for _, line in ipairs(judged) do
  if line.member and not line.blocked then
    turns[#turns + 1] = line.start + line.taken * line.step
    turns[#turns + 1] = line.key
  else
    out_of_ring[#out_of_ring + 1] = line.key
  end
  if line.member and line.blocked then
    blocks[#blocks + 1] = line.blocked
    blocks[#blocks + 1] = line.key
    next_block = math.min(next_block, line.blocked)
  end
  if line.interval and line.spent > 0 then
    local full = math.max(tonumber(line.full_at or 0), at) + line.spent * line.interval
    fills[#fills + 1] = full
    fills[#fills + 1] = line.key
    filled = math.max(filled, full - at)
  end
end
for n = first, #queue do
  local line = queue[n]
  if line ~= plain and not line.heads and line.woken_at then
    turns[#turns + 1] = line.turn
    turns[#turns + 1] = line.key
  end
end
local ready = #due == 400 or fit < count or unread or first <= #queue
ready = ready or plain_count < plain_left + behind[1] + behind[2] + behind[3]
if most and leased + fit >= most then closed = closed or look_again end
if closed and plain_count == plain_left and in_lines == #from_lines then closed = nil end
if closed then
  blocks[#blocks + 1] = closed
  blocks[#blocks + 1] = ''
  next_block = closed
end

local notes = {}
if paused then
  ready = false
elseif next_block < math.huge then
  wake_at = tonumber(wake_at) or 0
  if not (wake_at > at and wake_at <= next_block + 1) then
    reply[2] = math.ceil(next_block - at)
    notes = {'wake_at', string.format('%.0f', math.ceil(next_block))}
  end
elseif declared == '' and not any_set and in_lines == #from_lines then
  reply[2] = -2
end
local function to_note(name, value)
  notes[#notes + 1] = name
  notes[#notes + 1] = type(value) == 'number' and string.format('%.17g', value) or value
end
if declared ~= (noted_limits or '') then to_note('limits', declared) end
if clock_ahead ~= noted_ahead then to_note('clock_ahead', clock_ahead) end
if interval and spent > 0 then
  to_note('bucket', math.max(tonumber(full_at) or 0, at) + spent * interval)
end
if plain_count > 0 then to_note('plain_turn', plain.turn - (plain_taken - plain_count)) end

-- use: next_token, new_leases
if count > 0 then
  to_note('token', number or string.format('%.0f', token - 1))
  to_note('turn', turn)
end
if dropped > 0 then to_note('dropped', (tonumber(dropped_before) or 0) + dropped) end
local gone_ids = {}
for n = 1, fit do
  if not records[n] then gone_ids[#gone_ids + 1] = ids[n] end
end

-- use: store_leases
if #from_lines > 0 then redis.call('ZREM', lines, unpack(from_lines)) end
if #gone_ids > 0 then redis.call('HDEL', keyed, unpack(gone_ids)) end
if #stale > 0 then redis.call('ZREM', running, unpack(stale)) end
if #running_now > 0 then redis.call('ZADD', running, unpack(running_now)) end
if #out_of_ring > 0 then redis.call('ZREM', ring, unpack(out_of_ring)) end
if #turns > 0 then redis.call('ZADD', ring, unpack(turns)) end
redis.call('ZREM', blocked, '', unpack(woken))
if #blocks > 0 then redis.call('ZADD', blocked, unpack(blocks)) end
if #fills > 0 then
  full_ones = math.min(full_ones, #fills + 10)
  if full_ones > 0 then redis.call('ZREMRANGEBYRANK', buckets, 0, full_ones - 1) end
  redis.call('ZADD', buckets, unpack(fills))
  redis.call('PEXPIRE', buckets, math.ceil(math.max(bucket_ttl, filled, 600000)))
end
if ready and not closed and rung == 0 then redis.call('RPUSH', doorbell, '1') end
if #notes > 0 then redis.call('HSET', meta, unpack(notes)) end

note('dispatched', worker, taken)
-- use: receipt
return reply
