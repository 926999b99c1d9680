-- expire_message: pending | delayed -> processing, held by the expirer
-- Takes messages whose time to live has passed out of the queue, even while the topic is paused.
-- As in handle_timeout_message, the caller gets a lease with a short recovery deadline, and then
-- calls move_to_dlq.
-- The last `window` places of each list, the oldest, are read and written back without expired
-- messages and places that do not count. An id that is deeper keeps its place, which no longer
-- counts: see cancel_message. So that such places do not pile up where nothing is dispatched, once
-- there are `spare` of them LREM removes an id, ten per call, if it walks past at most `walk`
-- others. An expiry entry whose message is gone or held is dropped: older releases leave it.
-- Returns  now (ms); the ms until the next message expires, 0: there are more, -1: there are none;
--          then for each message: id, token, record
-- Cost     O(log N) per message, N waiting, and O(window); O(walk) for an id that is deeper
-- keys: payload | pending* | delay_tasks* | lines ring blocked keyed running doorbell
-- keys: waiting awaited signals
-- keys: cancelled expiry | processing expire_monitor | meta

local worker      = ARGV.worker                -- who takes them
local max_count   = tonumber(ARGV.max_count)   -- how many at most
local recovery_ms = tonumber(ARGV.recovery_ms) -- how long the caller may take to decide
local window      = tonumber(ARGV.window)      -- how many places at the end of each list are read
local walk        = tonumber(ARGV.walk)        -- how many further ones an LREM may walk past
local spare       = tonumber(ARGV.spare)       -- how many places that do not count may be left
-- use: clock

local ids = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, max_count)
local after = redis.call('ZRANGE', expiry, #ids, #ids, 'WITHSCORES')
local wait = after[2] and math.max(0, math.ceil(after[2] - now)) or -1
local reply = {string.format('%.0f', now), wait}
if #ids == 0 then return reply end

-- use: records_that_fit

-- Where they wait: `sought` are those that must be in a list.
local held = redis.call('HMGET', processing, unpack(ids))
local delays, sought, any_pending, from_lines = {}, {}, false, {}
local leaving, started = {}, false
for i = 1, fit do sought[ids[i]] = records[i] and not held[i] or nil end
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  local due, here = redis.pcall('ZMSCORE', key, unpack(ids, 1, fit)), {}
  for i = 1, fit do
    if due[i] and sought[ids[i]] then
      here[#here + 1] = ids[i]
      sought[ids[i]] = nil
    end
  end
  if #here > 0 then delays[#delays + 1] = {key, here} end
end
for i = 1, fit do leaving[#leaving + 1] = records[i] and not held[i] and ids[i] or nil end
-- use: freed_keys
local keys, removed, emptied = {}, {}, {}
for n, id in ipairs(with_key) do
  if sought[id] and redis.call('ZSCORE', lines, places[n] .. id) then
    local key = string.match(places[n], '^[^\t]*')
    from_lines[#from_lines + 1], sought[id] = places[n] .. id, nil
    keys[#keys + 1], removed[key] = key, (removed[key] or 0) + 1
  end
end
for _, key in ipairs(keys) do
  local waiting = redis.call('ZLEXCOUNT', lines, '[' .. key .. '\t', '(' .. key .. '\n')
  if waiting == removed[key] then emptied[#emptied + 1] = key end
end
redis.call('ZCARD', ring)
local waits_end = {}
if redis.call('ZCARD', waiting) > 0 then
  redis.call('ZCARD', awaited)
  for _, one in ipairs(delays) do
    for _, id in ipairs(one[2]) do waits_end[#waits_end + 1] = id end
  end
end
for i = 1, fit do any_pending = any_pending or sought[ids[i]] end

-- `cut` places are cut off the right end of a list, and those of them that stay are pushed back.
local tails, lists, hidden, surplus, passed = {}, {}, 0, {}, {}
local skipped = redis.call('SCARD', cancelled)
for _, key in ipairs(any_pending and {pending_high, pending, pending_low} or {}) do
  local length = redis.pcall('LLEN', key)
  if type(length) == 'number' and length > 0 then
    local tail = redis.call('LRANGE', key, -window, '-1')
    local marks = skipped > 0 and redis.call('SMISMEMBER', cancelled, unpack(tail)) or {}
    local others, cut, kept = {}, 0, 0
    for n = #tail, 1, -1 do
      local id = tail[n]
      local counts = marks[n] ~= 1 or passed[id]
      if sought[id] then
        sought[id], cut, kept = nil, #tail - n + 1, #others
      elseif not counts then
        passed[id], surplus[#surplus + 1], cut, kept = true, id, #tail - n + 1, #others
      else
        others[#others + 1] = id
      end
    end
    if cut > 0 then
      local back = {}
      for n = kept, 1, -1 do back[#back + 1] = others[n] end
      tails[#tails + 1] = {key, cut, back}
    end
    hidden = math.max(hidden, length - #tail)
    lists[#lists + 1] = key
  end
end

local last_token = redis.call('HGET', meta, 'token')
-- use: next_token
local gone, leases, deadlines, deep, walked, left = {}, {}, {}, {}, {}, #ids - fit
redis.call('ZCARD', expire_monitor)
for i = 1, fit do
  local id, taken = ids[i], records[i] and not held[i]
  if sought[id] and hidden > 0 then
    local marked = skipped > 0 and redis.call('SMISMEMBER', cancelled, id)[1] == 1
    if not marked and (hidden > walk or skipped + #deep < spare) then
      deep[#deep + 1] = id
    elseif #walked < 10 then
      walked[#walked + 1] = id
    else
      taken, left = nil, left + 1
    end
  end
  if taken then
    -- use: lease
    reply[#reply + 1] = records[i]
  end
  if taken ~= nil then gone[#gone + 1] = id end
end
if left > 0 then reply[2] = 0 end

redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
-- LREM and SADD come first: a user with the previous release's rights lacks them.
for _, id in ipairs(walked) do
  for _, key in ipairs(lists) do
    if redis.call('LREM', key, -1, id) == 1 then break end
  end
end
if #deep > 0 then redis.call('SADD', cancelled, unpack(deep)) end
redis.call('ZREM', expiry, unpack(gone))
for _, one in ipairs(delays) do redis.call('ZREM', one[1], unpack(one[2])) end
-- use: end_waits
if #from_lines > 0 then redis.call('ZREM', lines, unpack(from_lines)) end
-- use: free_keys
if #emptied > 0 then
  redis.call('ZREM', ring, unpack(emptied))
  redis.call('ZREM', blocked, unpack(emptied))
end
for _, tail in ipairs(tails) do
  redis.call('LTRIM', tail[1], '0', -tail[2] - 1)
  if #tail[3] > 0 then redis.call('RPUSH', tail[1], unpack(tail[3])) end
end
if #surplus > 0 then redis.call('SREM', cancelled, unpack(surplus)) end
if #leases > 0 then
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', expire_monitor, unpack(deadlines))
  redis.call('HSET', meta, 'token', string.format('%.0f', token - 1))
end
return reply
