-- fan_out: pending -> pending of every subscription
-- Moves messages of a topic to all its subscriptions: each gets a copy of the record, under the
-- same id, behind its own pending messages or in the line of the key. If a subscription already has
-- a message with this id, also a dead or quarantined one, that one stays as it is, and the copy is
-- not made. Keys take turns here, too. An id without a record, or with a lease, is dropped and
-- counted. The topic itself says which subscriptions it has: if the caller passed the keys of
-- others, nothing is moved, and it must ask again. Signals for the original are dropped. A paused
-- topic keeps its messages. At maxmemory this is refused, like a produce.
-- Returns  the names of the subscriptions; if they are those that were passed: how many messages
--          were moved, and how many are left
-- Cost     O(log N) per message and subscription, N waiting in it
-- keys: payload | pending* | lines ring blocked keyed | cancelled expiry | processing
-- keys: dlq_payload error_parse_payload | signals | doorbell meta | totals history

local stride    = 18 -- keys per topic: those above are the topic's, its subscriptions' follow
local max_count = tonumber(ARGV.max_count) -- how many of each level at most, and from lines
local names     = ARGV.names               -- the subscriptions whose keys follow
-- use: clock, history

local paused, subscriptions, dropped_before =
  unpack(redis.call('HMGET', meta, 'paused', 'subscriptions', 'dropped'))
local found = {}
for name in string.gmatch(subscriptions or '', '(%S+) %d+') do
  if string.byte(name) ~= 45 then found[#found + 1] = name end -- a dash: it was removed
end
found = table.concat(found, ' ')
if found ~= names then return {found} end
local open = not paused and names ~= ''

-- use: pending_levels
for level = 1, 3 do
  take[level] = math.min(max_count, left[level])
  left[level] = left[level] - take[level]
end
-- use: next_ids

local listed, in_lines, keys, turn_of, spots = count, 0, {}, {}, {}
if open then in_lines = redis.call('ZCARD', lines) end
if in_lines > 0 then
  local next_keys = redis.call('ZRANGE', ring, 0, 49, 'WITHSCORES')
  for n = 1, #next_keys, 2 do
    keys[#keys + 1], turn_of[next_keys[n]] = next_keys[n], tonumber(next_keys[n + 1])
  end
  for _, key in ipairs(#keys == 0 and redis.call('ZRANGE', blocked, 0, 49) or {}) do
    if key ~= '' then keys[#keys + 1] = key end -- blocked before there were subscriptions
  end
end
local share, more = math.ceil(max_count / math.max(1, #keys)), {}
for _, key in ipairs(keys) do
  local line = redis.call('ZRANGEBYLEX', lines, '[' .. key .. '\t', '(' .. key .. '\n',
    'LIMIT', 0, share + 1)
  more[key] = #line > share
  for n = 1, math.min(share, #line) do
    local level, cost, id = string.match(line[n], '^[^\t]*(\t%d)%d*( %d+ )(.+)$')
    if id then
      count = count + 1
      ids[count], spots[count] = id, {member = line[n], key = key, rest = level .. cost}
    end
  end
end
if count == 0 then return {found, 0, 0} end

-- use: records_that_fit
local too_many = math.max(0, listed - fit)
-- use: leave_rest
listed = math.min(listed, fit)
for n = fit + 1, count do
  if spots[n] then more[spots[n].key] = true end
end

local leases, costs, expires = {}, {}, {}
if redis.call('HLEN', processing) > 0 then
  leases = redis.call('HMGET', processing, unpack(ids, 1, fit))
end
if redis.call('HLEN', keyed) > 0 and listed > 0 then
  costs = redis.call('HMGET', keyed, unpack(ids, 1, listed))
end
if redis.call('ZCARD', expiry) > 0 then
  expires = redis.call('ZMSCORE', expiry, unpack(ids, 1, fit))
end
local moving, moved, seen, dropped, members_out, lost = {}, {}, {}, 0, {}, {}
for n = 1, fit do
  local id = ids[n]
  if records[n] and not leases[n] and not seen[id] then
    seen[id] = true
    moving[#moving + 1], moved[#moved + 1] = n, id
  else
    dropped = dropped + 1
    if not records[n] then lost[#lost + 1] = id end
  end
  if spots[n] then members_out[#members_out + 1] = spots[n].member end
end
local any_keyed = redis.call('HLEN', keyed) > 0
-- Reads whose answers do not matter: a key of a wrong type must fail before the first write.
redis.call('ZCARD', ring)
redis.call('ZCARD', blocked)
redis.call('HLEN', payload)
local ended, any_signals = moved, redis.call('ZCARD', signals) > 0

-- From here on, the names of keys are those of one topic or subscription after the other.
local function use_keys_from(first)
  payload, pending_high, pending, pending_low, lines, ring, blocked, keyed, cancelled, expiry,
    processing, dlq_payload, error_parse_payload, signals, doorbell, meta,
    totals, history = unpack(KEYS, first, first + stride - 1)
end

-- What each subscription gets.
local plans = {}
for first = stride + 1, #KEYS, stride do
  use_keys_from(first)
  local any_dead = redis.call('HLEN', dlq_payload) > 0
  local any_quarantined = redis.call('HLEN', error_parse_payload) > 0
  -- Few ids are there already, so 64 are looked up in one call, which moves no records.
  local surprise = false
  for from = 1, #moved, 64 do
    local upto = math.min(from + 63, #moved)
    local there = not surprise and redis.call('HMGET', payload, unpack(moved, from, upto)) or {}
    for n = 1, #there do surprise = surprise or there[n] end
  end
  local plan = {records = {}, levels = {{}, {}, {}}, costs = {}, expiries = {}, ids = {}, had = {}}
  local copies, joining, wake, plain = plan.records, {}, false, 0
  for n = 1, #moving do
    local at, id = moving[n], moved[n]
    if surprise and redis.call('HEXISTS', payload, id) == 1
      or any_dead and redis.call('HEXISTS', dlq_payload, id) == 1
      or any_quarantined and redis.call('HEXISTS', error_parse_payload, id) == 1 then
      plan.had[#plan.had + 1] = id
    else
      plan.ids[#plan.ids + 1] = id
      copies[#copies + 1], copies[#copies + 2] = id, records[at]
      if spots[at] then
        local last = #joining
        joining[last + 1], joining[last + 2], joining[last + 3] = id, spots[at].key, spots[at].rest
      else
        local level = plan.levels[at <= take[1] and 1 or at <= take[1] + take[2] and 2 or 3]
        level[#level + 1], plain = id, plain + 1
        if costs[at] then
          plan.costs[#plan.costs + 1], plan.costs[#plan.costs + 2] = id, costs[at]
        end
      end
      if expires[at] then
        plan.expiries[#plan.expiries + 1], plan.expiries[#plan.expiries + 2] = expires[at], id
      end
    end
  end
  -- use: line_ends
  plan.members, plan.numbered, plan.entering, plan.roused = members, numbered, entering, roused
  redis.call('LLEN', pending_high) -- these, too
  redis.call('LLEN', pending)
  redis.call('LLEN', pending_low)
  redis.call('ZCARD', expiry)
  redis.call('HLEN', keyed)
  ready = (ready or plain > 0) and not redis.call('ZSCORE', blocked, '')
  plan.rings = redis.call('LLEN', doorbell) == 0 and ready
  plans[first] = plan
end

-- The writes: copies first, then the topic gives its messages up.
for first = #KEYS - stride + 1, 1, -stride do
  use_keys_from(first)
  local plan = plans[first]
  if plan then
    local members, numbered, entering, roused =
      plan.members, plan.numbered, plan.entering, plan.roused
    local high, normal, low = unpack(plan.levels)
    if #plan.records > 0 then redis.call('HSET', payload, unpack(plan.records)) end
    if #high > 0 then redis.call('LPUSH', pending_high, unpack(high)) end
    if #normal > 0 then redis.call('LPUSH', pending, unpack(normal)) end
    if #low > 0 then redis.call('LPUSH', pending_low, unpack(low)) end
    if #plan.costs > 0 then redis.call('HSET', keyed, unpack(plan.costs)) end
    -- use: join_lines
    if #plan.expiries > 0 then redis.call('ZADD', expiry, unpack(plan.expiries)) end
    if plan.rings then redis.call('RPUSH', doorbell, '1') end
    note('produced', '', plan.ids)
    note('duplicate', '', plan.had)
  else
    -- use: leave_lists
    if #moved > 0 then redis.call('HDEL', payload, unpack(moved)) end
    -- use: forget_signals
    if #moved > 0 and #expires > 0 then redis.call('ZREM', expiry, unpack(moved)) end
    if #moved > 0 and any_keyed then redis.call('HDEL', keyed, unpack(moved)) end
    if #lost > 0 and any_keyed then redis.call('HDEL', keyed, unpack(lost)) end
    if #members_out > 0 then redis.call('ZREM', lines, unpack(members_out)) end
    for _, key in ipairs(keys) do
      if not more[key] then
        redis.call('ZREM', ring, key)
        redis.call('ZREM', blocked, key)
      elseif turn_of[key] then
        redis.call('ZADD', ring, string.format('%.17g', turn_of[key] + 1), key)
      end
    end
    if dropped > 0 then
      redis.call('HSET', meta, 'dropped', (tonumber(dropped_before) or 0) + dropped)
    end
    note('fanned_out', '', moved)
  end
end
for level = 1, 3 do in_lines = in_lines + left[level] + behind[level] end
return {found, #moved, in_lines - #members_out}
