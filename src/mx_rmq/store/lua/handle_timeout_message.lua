-- handle_timeout_message: processing -> processing, held by the monitor
--
-- Takes over messages whose lease has run out: a new token, which shuts the old holder out, and
-- a short recovery deadline. Nothing is removed: the caller decides and then calls retry_message
-- or move_to_dlq with the new token; if it dies first, the recovery deadline brings the message
-- back. A deadline without a lease, or a lease without a record, is a leftover and is dropped. One
-- reply holds 8 MiB of records, or a single message.
--
-- If the time is not what the caller expects, the clock was set, and nothing is taken over: first
-- the holders shall extend their leases. Tokens are never behind the clock, so where they are ahead
-- of it, it was set back, and leases of before may have deadlines as far ahead. With far_ms those
-- go, too: the living have extended theirs since. With grace_ms only leases that ran out that long
-- ago are taken over: the worker that asks does not serve the topic, and those that do come first.
--
-- Returns  now (ms); '1' if it is not what was expected, else '0'; how far the clock is behind what
--          it has been (ms); then for each message: id, token, the worker that lost it, record
-- Cost     O(log P) a message, P in processing

local payload        = KEYS[1]  -- HASH  id -> record
local processing     = KEYS[2]  -- HASH  id -> lease, token:worker
local expire_monitor = KEYS[3]  -- ZSET  id -> lease deadline (ms)
local meta           = KEYS[4]  -- HASH  token, turn, paused, dropped, tick
local totals         = KEYS[5]  -- HASH  how many messages ever went which way
local history        = KEYS[6]  -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local worker      = ARGV[2]           -- the monitor
local max_count   = tonumber(ARGV[3]) -- how many at the most
local recovery_ms = tonumber(ARGV[4]) -- how long the monitor may take to decide
local expected_ms = tonumber(ARGV[5]) -- what it takes for the time (ms), or '': it has no idea
local jump_ms     = tonumber(ARGV[6]) -- how far from that the time may be
local far_ms      = tonumber(ARGV[7]) -- how far ahead no deadline can be, or '': leave those alone
local grace_ms    = tonumber(ARGV[8]) -- how long ago a lease must have run out
local remember    = ARGV[9]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

local last_token, dropped = unpack(redis.call('HMGET', meta, 'token', 'dropped'))
last_token = math.floor(tonumber(last_token) or 0)
if not (last_token < 9e15) then last_token = 0 end -- nan, or so large that it cannot grow
local behind = math.max(0, math.floor(last_token / 1000) - now)
local surprised = expected_ms and (now < expected_ms - jump_ms or now > expected_ms + jump_ms)
local reply = {
  string.format('%.0f', now), surprised and '1' or '0', string.format('%.0f', behind)
}
if surprised then return reply end

local late = string.format('%.0f', now - grace_ms)
local ids = redis.call('ZRANGEBYSCORE', expire_monitor, '-inf', late, 'LIMIT', 0, max_count)
if far_ms and behind > jump_ms then
  local far, room = string.format('(%.0f', now + far_ms), max_count - #ids
  local left = redis.call('ZRANGEBYSCORE', expire_monitor, far, '+inf', 'LIMIT', 0, room)
  for _, id in ipairs(left) do ids[#ids + 1] = id end
end
if #ids == 0 then return reply end

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

local held = redis.call('HMGET', processing, unpack(ids))
local token = math.max(last_token + 1, math.min(now, 8e12) * 1000)
local leases, deadlines, leftover, orphans, taken, lost_by = {}, {}, {}, {}, {}, {}
for i = 1, fit do
  local id = ids[i]
  if held[i] and records[i] then
    local number = string.format('%.0f', token)
    leases[#leases + 1] = id
    leases[#leases + 1] = number .. ':' .. worker
    deadlines[#deadlines + 1] = now + recovery_ms
    deadlines[#deadlines + 1] = id
    reply[#reply + 1] = id
    reply[#reply + 1] = number
    taken[#taken + 1] = id
    lost_by[#taken] = string.match(held[i], ':(.*)$') or ''
    reply[#reply + 1] = lost_by[#taken]
    reply[#reply + 1] = records[i]
    token = token + 1
  else
    leftover[#leftover + 1] = id
    if held[i] then orphans[#orphans + 1] = id end
  end
end

-- shared: removes nothing, but at maxmemory Redis allows it, and then the writes that follow
redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0)
-- end

if #leftover > 0 then redis.call('ZREM', expire_monitor, unpack(leftover)) end
if #orphans > 0 then
  redis.call('HDEL', processing, unpack(orphans))
  redis.call('HSET', meta, 'dropped', (tonumber(dropped) or 0) + #orphans)
end
if #leases > 0 then
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', expire_monitor, unpack(deadlines))
  redis.call('HSET', meta, 'token', string.format('%.0f', token - 1))
end

local what, by, done, about = 'taken_over', worker, taken, lost_by

-- shared: count what has happened, and write it down; that this fails is no reason to fail
if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
-- end

return reply
