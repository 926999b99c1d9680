-- dispatch_in_turn: pending -> processing, in turn and within limits
-- Like dispatch_message, for topics with keys or limits. Each key has a line. The line with the
-- lowest turn gives its next message, and its turn grows by 1/weight. Messages without a key are
-- one line among the others. A line is blocked if its key has no free place, too few tokens in its
-- bucket, or a pause: it leaves the ring until that ends, or until one of its messages is settled.
-- The whole topic is blocked under the key ''. The limits of blocked lines are checked again here,
-- so waking one too often does no harm.
-- One worker must ask again when the next block ends: this one, unless `wake_at` says that another
-- was told so. A worker that asks too early is told again. A second one, the `stand_in`, must ask a
-- second later, in case the first one was killed. If there is none, the doorbell calls one.
-- A bucket is stored as the time at which it is full.
-- The parts: the limits in force; what may come next without a key; the lines, by turn; take
-- messages until there is no more room; their records and leases; what changes; the writes.
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

noted = redis.call('HMGET', meta, 'paused', 'token', 'turn', 'dropped', 'limits', 'clock_ahead',
  'bucket', 'plain_turn', 'wake_at', 'stand_in', 'subscriptions') -- a script has at most 200 locals
local paused, last_token, turn, dropped_before, noted_limits, clock_ahead, full_at, plain_turn,
  wake_at, stand_in = unpack(noted)
paused = paused or string.find(noted[11] or '', '^[^-]') -- fan_out takes the messages
local noted_ahead = tonumber(clock_ahead) or 0
-- use: line_clock

-- THE LIMITS IN FORCE: what an operator has set, else what the handler declares.
local most, interval, burst, key_most, key_interval, key_burst =
  string.match(declared, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
local any_set, as_set = redis.call('HLEN', limits) > 0, '^(%S+) (%S+) (%S+) (%S+) (%S+)'
local only_a_pause, ended = '^%- %- %- %- %d', {} -- ended: pauses that leave nothing set
local topic_set = any_set and redis.call('HGET', limits, '') or ''
local stop, rate_is_set
do -- Lua allows 200 locals at a time
  local set_most, set_interval, set_burst, _, until_ms = string.match(topic_set, as_set)
  most = tonumber(set_most) or tonumber(most)
  stop, rate_is_set = until_ms, tonumber(set_interval)
  if rate_is_set then interval, burst = set_interval, set_burst end
end
interval, burst = tonumber(interval), tonumber(burst)
key_most, key_interval, key_burst = tonumber(key_most), tonumber(key_interval), tonumber(key_burst)

local leased = redis.call('HLEN', processing)
-- A line that waits for a free place is checked on a full minute, in case nothing wakes it sooner.
-- The full minute also marks it: a settled message wakes these lines, not those that wait for a
-- bucket.
local look_again = (math.floor(at / 60000) + 2) * 60000
local room, closed = paused and 0 or max_count, nil -- closed: when to look at the topic again
if string.find(topic_set, only_a_pause) and tonumber(stop) <= at then ended[1] = '' end
if (tonumber(stop) or 0) > at then
  room, closed = 0, tonumber(stop)
elseif most and leased >= most or alone == '1' and leased > 0 then
  room, closed = 0, look_again
end
if most then room = math.min(room, math.max(0, most - leased)) end
local function tokens_at(full, per, depth)
  return depth - math.max(0, (tonumber(full) or 0) - at) / per + 1e-6 -- rounding costs no token
end
-- If another rate was declared before, what is missing in the bucket is filled at the new one.
local sooner
if interval and not rate_is_set and declared ~= (noted_limits or '')
  and (tonumber(full_at) or 0) > at then
  local per, depth = string.match(noted_limits or '', '^%S+ ([%d.]+) ([%d.]+)')
  local missing = per and burst - depth + (full_at - at) / per
  sooner = missing and at + math.max(0, missing) * interval
  if sooner and sooner < tonumber(full_at) then full_at = sooner else sooner = nil end
end
local tokens = interval and tokens_at(full_at, interval, burst) or math.huge

-- THE LINE OF THE MESSAGES WITHOUT A KEY: `plain_ids`, as far as there is room.
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

-- THE LINES that may come next, by turn: queue[first] to queue[final]. A line is a number, and each
-- of its properties has its own array, because a table per line costs more. 0: the plain line.
local plain, queue, first, final, known, line_count, judged_count = 0, {}, 1, 0, {}, 0, 0
local key_of, prefix_of, turn_of, step_of, woken_of = {}, {}, {}, {}, {}
local limit_of, interval_of, burst_of, full_of, stop_of, pauses = {}, {}, {}, {}, {}, {}
local places_of, tokens_of, blocked_of, spent_of = {}, {}, {}, {}
local page_of, spot_of, member_of = {}, {}, {}
local base = tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0
local any_bucket = redis.call('ZCARD', buckets) > 0
local running_count = redis.call('ZCARD', running)
local any_limits = any_set or any_bucket or key_most or key_interval

local function enqueue(line)
  local spot, its_turn = final + 1, turn_of[line]
  while spot > first and turn_of[queue[spot - 1]] > its_turn do
    queue[spot], spot = queue[spot - 1], spot - 1
  end
  queue[spot], final = line, final + 1
end

-- Notes what is set for the lines from `first_line` on, and what their buckets hold.
local function read_limits(keys, first_line)
  local stops = {}
  for n = 1, #keys do stops[n] = keys[n] .. '\t' end
  local sets = any_set and redis.call('HMGET', limits, unpack(keys)) or {}
  local full = any_bucket and redis.call('ZMSCORE', buckets, unpack(keys)) or {}
  stops = any_bucket and redis.call('ZMSCORE', buckets, unpack(stops)) or {}
  for n = 1, #keys do
    local line = first_line + n - 1
    full_of[line], stop_of[line] = full[n] or nil, tonumber(stops[n] or nil)
    if sets[n] then
      local own_most, own_interval, own_burst, weight, until_ms = string.match(sets[n], as_set)
      limit_of[line], weight = tonumber(own_most), tonumber(weight)
      stop_of[line] = math.max(stop_of[line] or 0, tonumber(until_ms) or 0)
      pauses[line] = string.find(sets[n], only_a_pause)
      if tonumber(own_interval) then
        interval_of[line], burst_of[line] = tonumber(own_interval), tonumber(own_burst)
      end
      if weight then step_of[line] = 1 / weight end
    end
  end
end

-- Puts lines into the queue. `found`: key, score, key, score, ... from the ring, or from `blocked`.
local function enter(found, from_blocked)
  local keys, first_line, text, score = {}, line_count + 1, nil, nil
  for n = 1, #found, 2 do
    local key = found[n]
    if key ~= '' and not known[key] then
      local line = line_count + 1
      if found[n + 1] ~= text then text, score = found[n + 1], tonumber(found[n + 1]) end
      line_count, key_of[line], turn_of[line] = line, key, score
      if any_limits then keys[line - first_line + 1] = key end
    end
  end
  if any_limits and #keys > 0 then read_limits(keys, first_line) end
  for line = first_line, line_count do
    if from_blocked then
      known[key_of[line]], woken_of[line] = true, turn_of[line]
      turn_of[line] = base + (step_of[line] or 1)
    end
    enqueue(line)
  end
end

-- Behind the prefix a member has a digit and sixteen more, a blank, the cost, a blank and the id.
local function cost_and_id(member, size)
  local cost, blank = string.byte(member, size + 19, size + 20)
  if cost == 49 and blank == 32 then return 1, string.sub(member, size + 21) end
  local gap = string.find(member, ' ', size + 19, true) or #member
  return tonumber(string.sub(member, size + 19, gap - 1)) or 1, string.sub(member, gap + 1)
end

-- Whether the next message of a line may start; if not, `blocked_of` says until when.
local function check_limits(line)
  if places_of[line] and places_of[line] <= 0 then
    blocked_of[line] = look_again
  elseif tokens_of[line] then
    local cost = cost_and_id(member_of[line], #prefix_of[line])
    local need = math.min(cost, burst_of[line] or key_burst)
    if tokens_of[line] < need then
      blocked_of[line] = at + (need - tokens_of[line]) * (interval_of[line] or key_interval)
    end
  end
end

-- Goes on to the next message of a line: `member_of`, nil if there is none. `page_of` are members
-- of `lines`, also of other lines, and `spot_of` is where in the page the line is.
local function advance(line)
  local prefix, spot, page = prefix_of[line], spot_of[line] + 1, page_of[line]
  local member = page[spot]
  if not member and page.more then
    local share = math.ceil(room / math.max(1, final - first + 1)) + 1
    page = redis.call('ZRANGEBYLEX', lines, '(' .. member_of[line], '(' .. key_of[line] .. '\n',
      'LIMIT', '0', share)
    page.more = #page == share
    page_of[line], spot, member = page, 1, page[1]
  end
  if member and string.sub(member, 1, #prefix) ~= prefix then member = nil end
  spot_of[line], member_of[line] = spot, member
  if member and any_limits then check_limits(line) end
end

-- Finds the first message of a line. Lines of the same turn are in the order of their keys, as in
-- `lines`, so one read gives the heads of several short lines. `near` is what was read last,
-- `near_spot` where the last line was found in it, `ahead` how many members of other lines to read:
-- fewer after a long line.
local near, near_spot, near_long, ahead = {}, 0, false, 8
local function find_head(line, prefix)
  local size = #prefix
  for spot = near_spot + 1, math.min(near_spot + 8, #near) do
    local member = near[spot]
    if string.sub(member, 1, size) == prefix then
      near_spot, page_of[line], spot_of[line], member_of[line] = spot, near, spot, member
      return
    end
  end
  if near_long or near_spot + 8 < #near then
    ahead = math.floor(ahead / 4)
  elseif near.more then
    ahead = ahead * 2
  end
  local others = final - first
  local extra = math.min(ahead, others)
  local share = math.min(places_of[line] or room, math.ceil(room / (others + 1))) + 1
  near = redis.call('ZRANGEBYLEX', lines, '[' .. prefix,
    extra > 0 and '+' or '(' .. key_of[line] .. '\n', 'LIMIT', '0', share + extra)
  near.more = #near == share + extra
  near_long = near.more and string.sub(near[#near], 1, size) == prefix
  near_spot, page_of[line], spot_of[line] = 1, near, 1
  if near[1] and string.sub(near[1], 1, size) == prefix then member_of[line] = near[1] end
end

-- Finds the first message of a line, and whether it may start.
local stale = {}
local function judge(line)
  local prefix = key_of[line] .. '\t'
  judged_count, prefix_of[line] = judged_count + 1, prefix
  if not any_limits then return find_head(line, prefix) end
  local limit, interval_ms = limit_of[line] or key_most, interval_of[line] or key_interval
  if limit then
    local least, beyond = '[' .. prefix, '(' .. key_of[line] .. '\n'
    local busy = running_count > 0 and redis.call('ZLEXCOUNT', running, least, beyond) or 0
    -- Nothing woke it in time: a worker of an older release may have settled its messages.
    if busy >= limit and (woken_of[line] or 0) > 0 then
      for _, member in ipairs(redis.call('ZRANGEBYLEX', running, least, beyond, 'LIMIT', 0, 100)) do
        local _, id = cost_and_id(member, #prefix)
        local there = redis.call('HEXISTS', processing, id) == 1
        for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
          there = redis.call('ZSCORE', key, id) or there
        end
        if not there then busy, stale[#stale + 1] = busy - 1, member end
      end
    end
    places_of[line] = math.max(0, limit - busy)
  end
  if interval_ms then
    tokens_of[line] = tokens_at(full_of[line], interval_ms, burst_of[line] or key_burst)
  end
  find_head(line, prefix)
  if member_of[line] then check_limits(line) end
  if (stop_of[line] or 0) > at then
    blocked_of[line] = stop_of[line]
  elseif pauses[line] then
    ended[#ended + 1] = key_of[line]
  end
end

local due, woken = {}, {}
if room > 0 then
  due = redis.call('ZRANGEBYSCORE', blocked, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 200)
end
for n = 1, #due, 2 do
  if due[n] ~= '' then woken[#woken + 1] = due[n] end
end
if #woken > 0 then enter(due, true) end
turn_of[plain] = math.max(base, math.min(tonumber(plain_turn) or base, base + 1))
local ran_ahead = (tonumber(plain_turn) or 0) > base + 1 -- of a ring that was empty since
if #plain_ids > 0 then enqueue(plain) end

-- TAKE MESSAGES IN TURN: the n-th has ids[n] and line_at[n]. `from_lines` are the places of those
-- with keys, in the same order.
local ids, count, line_at, cost_at, from_lines, line_taken = {}, 0, {}, {}, {}, 0
local plain_taken, spent, loaded, unread, last_turn = 0, 0, 0, room > 0, -math.huge
while count < room and not closed do
  local line = queue[first]
  if unread and (not line or turn_of[line] > last_turn) and judged_count < 1000 then
    local found = redis.call('ZRANGE', ring, loaded, loaded + room, 'WITHSCORES')
    loaded, unread, last_turn = loaded + #found / 2, #found / 2 > room, tonumber(found[#found])
    enter(found)
  elseif not line then
    break
  elseif line ~= plain and not page_of[line] then
    judge(line)
    if blocked_of[line] or not member_of[line] then first = first + 1 end
  else
    local member, cost, id = member_of[line], 1, nil
    if line == plain then
      id = plain_ids[plain_taken + 1]
      cost = tonumber(string.match(costs[plain_taken + 1] or '', ' (%d+) $')) or 1
    else
      cost, id = cost_and_id(member, #prefix_of[line])
    end
    local need = burst and math.min(cost, burst) or 0
    if tokens < need then
      closed = at + (need - tokens) * interval
    else
      count, first, spent, tokens = count + 1, first + 1, spent + cost, tokens - cost
      ids[count], line_at[count] = id, line
      turn_of[line] = turn_of[line] + (step_of[line] or 1)
      if cost ~= 1 then cost_at[count] = cost end
      if line == plain then
        plain_taken = plain_taken + 1
        if plain_taken < #plain_ids then enqueue(line) end
      else
        line_taken = line_taken + 1
        from_lines[line_taken] = member
        if places_of[line] then places_of[line] = places_of[line] - 1 end
        if tokens_of[line] then
          tokens_of[line], spent_of[line] = tokens_of[line] - cost, (spent_of[line] or 0) + cost
        end
        advance(line)
        if member_of[line] and not blocked_of[line] then enqueue(line) end
      end
    end
  end
end

-- RECORDS AND LEASES
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

-- use: next_token, new_leases

-- WHAT CHANGES. What does not fit stays in its line. What does not start costs nothing, and its
-- line may go on.
local plain_count, starting, unused = plain_taken, from_lines, 0
if given < count then
  local members, spot = from_lines, 0
  plain_count, from_lines, starting = 0, {}, {}
  for n = 1, count do
    local line, cost, member = line_at[n], cost_at[n] or 1, nil
    if line ~= plain then
      spot = spot + 1
      member = members[spot]
    end
    if n > fit then
      turn_of[line], member_of[line] = turn_of[line] - (step_of[line] or 1), member
    elseif member then
      from_lines[#from_lines + 1] = member
    else
      plain_count = plain_count + 1
    end
    if n > fit or held[n] or not records[n] then
      unused, spent, blocked_of[line] = unused + 1, spent - cost, nil
      if spent_of[line] then
        spent_of[line] = spent_of[line] > cost and spent_of[line] - cost or nil
      end
    elseif member then
      starting[#starting + 1] = member
    end
  end
  if unused > 0 then closed = nil end
end
for n = 1, plain_count do take[level_of[n]] = take[level_of[n]] + 1 end
turn = (turn + plain_count) % 10

local turns, blocks, out_of_ring, fills, filled, texts = {}, {}, {}, {}, 0, {}
local function text_of(value) -- most lines have the same values, and formatting is slow
  local text = texts[value]
  if not text then
    text = string.format('%.17g', value)
    texts[value] = text
  end
  return text
end
for line = 1, line_count do
  local key, judged, blocked_until = key_of[line], page_of[line], blocked_of[line]
  if judged and not member_of[line] then
    out_of_ring[#out_of_ring + 1] = key
  elseif blocked_until then
    out_of_ring[#out_of_ring + 1] = key
    blocks[#blocks + 1], blocks[#blocks + 2] = text_of(blocked_until), key
    next_block = math.min(next_block, blocked_until)
  elseif judged or woken_of[line] then
    turns[#turns + 1], turns[#turns + 2] = text_of(turn_of[line]), key
  end
  local interval_ms = interval_of[line] or key_interval
  if interval_ms and spent_of[line] then
    local full = math.max(tonumber(full_of[line] or 0), at) + spent_of[line] * interval_ms
    fills[#fills + 1], fills[#fills + 2] = text_of(full), key
    filled = math.max(filled, full - at)
  end
end
local ready = #due == 400 or unused > 0 or unread or first <= final
ready = ready or plain_count < plain_left + behind[1] + behind[2] + behind[3]
if most and leased + count - unused >= most then closed = closed or look_again end
if closed and plain_count == plain_left and in_lines == #from_lines then closed = nil end
if closed then
  blocks[#blocks + 1], blocks[#blocks + 2] = closed, ''
  next_block = closed
end

local notes, call_second = {}, false
if paused then
  ready = false
elseif next_block < math.huge then
  local told_time, told = string.match(wake_at or '', '^(%d+) (.*)$')
  local stand_in_time, second = string.match(stand_in or '', '^(%d+) (.*)$')
  told_time, stand_in_time = tonumber(told_time) or 0, tonumber(stand_in_time) or 0
  if told == worker or not (told_time > at and told_time <= next_block + 1) then
    reply[2] = math.ceil(next_block - at)
    notes = {'wake_at', string.format('%.0f %s', math.ceil(next_block), worker)}
    if second == worker or stand_in_time <= at then -- the next one to ask, within a second
      call_second = true
      notes[3], notes[4] = 'stand_in', string.format('%.0f ', at + 1000)
    end
  elseif second == worker or second == '' or stand_in_time <= at then
    reply[2] = math.ceil(told_time + 1000 - at)
    notes = {'stand_in', string.format('%.0f %s', told_time + 1000, worker)}
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
if interval and (spent > 0 or sooner) then
  to_note('bucket', math.max(tonumber(full_at) or 0, at) + spent * interval)
end
if plain_count > 0 or ran_ahead and #plain_ids > 0 then to_note('plain_turn', turn_of[plain]) end
if count > 0 then
  to_note('token', number or string.format('%.0f', token - 1))
  to_note('turn', turn)
end
if dropped > 0 then to_note('dropped', (tonumber(dropped_before) or 0) + dropped) end
local gone_ids, running_now = {}, {}
for n = 1, dropped > 0 and fit or 0 do
  if not records[n] then gone_ids[#gone_ids + 1] = ids[n] end
end
for n = 1, #starting do running_now[2 * n - 1], running_now[2 * n] = '0', starting[n] end

-- THE WRITES
if #from_lines > 0 then redis.call('ZREM', lines, unpack(from_lines)) end -- works at maxmemory
if count == 0 then redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) end -- works at maxmemory
-- use: leave_lists, store_leases
if #gone_ids > 0 then redis.call('HDEL', keyed, unpack(gone_ids)) end
if #ended > 0 then redis.call('HDEL', limits, unpack(ended)) end
if #stale > 0 then redis.call('ZREM', running, unpack(stale)) end
if #running_now > 0 then
  local long = #running_now > 64 and running_count < 128 and string.format('\t%65s', '')
  if long then redis.call('ZADD', running, '0', long) end -- as in store_leases
  redis.call('ZADD', running, unpack(running_now))
  if long then redis.call('ZREM', running, long) end
end
if #out_of_ring > 0 then redis.call('ZREM', ring, unpack(out_of_ring)) end
if #turns > 0 then redis.call('ZADD', ring, unpack(turns)) end
redis.call('ZREM', blocked, '', unpack(woken))
if #blocks > 0 then redis.call('ZADD', blocked, unpack(blocks)) end
if #fills > 0 then
  full_ones = math.min(full_ones, #fills + 10)
  if full_ones > 0 then redis.call('ZREMRANGEBYRANK', buckets, 0, full_ones - 1) end
  redis.call('ZADD', buckets, unpack(fills))
  -- 1e13 ms are 300 years. Servers refuse a number with an exponent, which 1e17 gets.
  redis.call('PEXPIRE', buckets, math.min(1e13, math.ceil(math.max(bucket_ttl, filled, 600000))))
end
if (ready and not closed or call_second) and rung == 0 then redis.call('RPUSH', doorbell, '1') end
if #notes > 0 then redis.call('HSET', meta, unpack(notes)) end

note('dispatched', worker, taken)
-- use: receipt
return reply
