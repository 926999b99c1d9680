-- dispatch_message: pending -> processing
-- Leases up to max_count messages to a worker, each with a deadline and a token that only grows.
-- High comes before normal before low, but of every ten turns one offers normal first and one low
-- first, so that no level starves. An id without a record, or with a lease, is dropped and counted.
-- The place of a cancelled message is skipped, up to a hundred per call; if its id is in use again,
-- its next place counts. One reply holds 8 MiB of records, or a single message. If messages are
-- left, the doorbell rings for the next worker. A level with a key of a wrong type is skipped.
-- If messages have keys or the topic is limited, dispatch_in_turn does all this instead. A topic
-- with subscriptions gives no worker any: fan_out takes them.
-- Returns  now (ms); -1, or 0: ask again at once, or -2: call dispatch_in_turn; then for each
--          message: id, token, record. A paused topic gives none. The same call again gives the
--          same messages, as far as the worker still holds them.
-- Cost     O(log P) per message, P in processing
-- keys: payload | pending* | ring blocked limits | cancelled expiry | processing expire_monitor
-- keys: doorbell meta | receipt totals history

local max_count = tonumber(ARGV.max_count) -- how many at most
local lease_ms  = tonumber(ARGV.lease_ms)  -- how long until the leases run out
local alone     = ARGV.alone               -- '1': none while one is in processing, to keep order
-- use: clock, history, same_dispatch

local paused, last_token, turn, dropped_before, subscriptions =
  unpack(redis.call('HMGET', meta, 'paused', 'token', 'turn', 'dropped', 'subscriptions'))
local in_turn = redis.call('EXISTS', ring, blocked, limits) > 0
if in_turn then reply[2] = -2 end
local open = not paused and not in_turn
open = open and not (alone == '1' and redis.call('HLEN', processing) > 0)
open = open and not string.find(subscriptions or '', '^[^-]') -- fan_out takes them

-- use: pending_levels
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

-- use: next_ids

-- use: records_that_fit

local held = count > 0 and redis.call('HMGET', processing, unpack(ids)) or {}
local rung = redis.call('LLEN', doorbell)
local leased = redis.call('ZCARD', expire_monitor)
local expiring = redis.pcall('ZCARD', expiry)

local too_many = count - fit
-- use: leave_rest

-- use: next_token, new_leases

if count == 0 then redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) end -- works at maxmemory
-- use: leave_lists, store_leases
for level = 1, 3 do left[level] = left[level] + behind[level] end
if left[1] + left[2] + left[3] > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end
if count > 0 then
  redis.call('HSET', meta, 'token', number or string.format('%.0f', token - 1), 'turn', turn)
end
if dropped > 0 then
  redis.call('HSET', meta, 'dropped', (tonumber(dropped_before) or 0) + dropped)
end

note('dispatched', worker, taken)
-- use: receipt
return reply
