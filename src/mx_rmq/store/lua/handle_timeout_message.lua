-- handle_timeout_message: processing -> processing, held by the monitor
-- Takes over messages whose lease has run out: a new token, which shuts the old holder out, and a
-- short recovery deadline. Nothing is removed. The caller decides and calls retry_message or
-- move_to_dlq with the new token; if it dies first, the recovery deadline brings the message back.
-- The mark of a replaced message goes along to the new lease.
-- A deadline without a lease, or a lease without a record, is a leftover and is dropped.
-- If the time is not what the caller expects, the clock was set, and nothing is taken over: holders
-- get time to extend their leases. A token ahead of the clock means that the clock was set back, so
-- older deadlines may be far ahead. With far_ms those leases are taken over, too: live workers have
-- extended theirs since. grace_ms is for a caller that does not serve the topic: workers that do
-- come first.
-- Returns  now (ms); '1' if it is not what was expected, else '0'; how far the clock is behind
--          where it was (ms); then for each message: id, token, the worker that lost it, record
-- Cost     O(log P) per message, P in processing
-- keys: payload | processing expire_monitor | keyed running blocked doorbell signals | meta
-- keys: totals history

local worker      = ARGV.worker                -- the monitor
local max_count   = tonumber(ARGV.max_count)   -- how many at most
local recovery_ms = tonumber(ARGV.recovery_ms) -- how long the monitor may take to decide
local expected_ms = tonumber(ARGV.expected_ms) -- what the time should be (ms), or '': unknown
local jump_ms     = tonumber(ARGV.jump_ms)     -- how far from that the time may be
local far_ms      = tonumber(ARGV.far_ms)      -- how far ahead a deadline can be, or '': any
local grace_ms    = tonumber(ARGV.grace_ms)    -- how long ago a lease must have run out
-- use: clock, history

local last_token, dropped = unpack(redis.call('HMGET', meta, 'token', 'dropped'))
-- use: next_token
local behind = math.max(0, math.floor(last_token / 1000) - now)
local surprised = expected_ms and (now < expected_ms - jump_ms or now > expected_ms + jump_ms)
local reply = {string.format('%.0f', now), surprised and '1' or '0', string.format('%.0f', behind)}
if surprised then return reply end

local late = string.format('%.0f', now - grace_ms)
local ids = redis.call('ZRANGEBYSCORE', expire_monitor, '-inf', late, 'LIMIT', 0, max_count)
if far_ms and behind > jump_ms then
  local far, room = string.format('(%.0f', now + far_ms), max_count - #ids
  local left = redis.call('ZRANGEBYSCORE', expire_monitor, far, '+inf', 'LIMIT', 0, room)
  for _, id in ipairs(left) do ids[#ids + 1] = id end
end
if #ids == 0 then return reply end

-- use: records_that_fit

local held = redis.call('HMGET', processing, unpack(ids))
local leases, deadlines, leftover, orphans, taken, lost_by = {}, {}, {}, {}, {}, {}
for i = 1, fit do
  local id = ids[i]
  if held[i] and records[i] then
    -- use: lease
    taken[#taken + 1] = id
    local loser, mark = string.match(held[i], ':([^ ]*)(.*)$')
    lost_by[#taken] = loser or ''
    leases[#leases] = leases[#leases] .. (mark or '')
    reply[#reply + 1] = lost_by[#taken]
    reply[#reply + 1] = records[i]
  else
    leftover[#leftover + 1] = id
    if held[i] then orphans[#orphans + 1] = id end
  end
end

local leaving, started = orphans, true
-- use: freed_keys
redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
-- use: free_keys, forget_keys
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

note('taken_over', worker, taken, lost_by)
return reply
