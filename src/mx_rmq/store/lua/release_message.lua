-- release_message: processing -> pending
-- Hands back messages that a worker did not handle, because it stops or is full: to the front of
-- their level or their line, in the order in which they were taken. No attempt is counted.
-- Returns  same as complete_message
-- Cost     O(log P) per message, P in processing
-- keys: pending* | expiry | processing expire_monitor | doorbell
-- keys: lines ring blocked keyed running signals | receipt totals history

local each, width = ARGV.each, 4 -- per message: id, token, level, expires_ms
-- use: clock, first_answer, history, held_messages
if count == 0 then return answer end

local leaving, started = held, true
-- use: freed_keys
local joining, wake, in_line = {}, true, {}
for n, id in ipairs(with_key) do
  local key, place = string.match(places[n], '^(.-)(\t.*)$')
  if key ~= '' then
    local last = #joining
    joining[last + 1], joining[last + 2], joining[last + 3], in_line[id] = id, key, place, true
  end
end
-- use: line_ends
local front, expiries = {high = {}, normal = {}, low = {}}, {}
for n = #mine, 1, -1 do
  local ids = front[ARGV[mine[n] + 2]]
  if not in_line[ARGV[mine[n]]] then ids[#ids + 1] = ARGV[mine[n]] end
  if ARGV[mine[n] + 3] ~= '' then
    expiries[#expiries + 1] = ARGV[mine[n] + 3]
    expiries[#expiries + 1] = ARGV[mine[n]]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
if #front.high > 0 then redis.call('LLEN', pending_high) end
if #front.normal > 0 then redis.call('LLEN', pending) end
if #front.low > 0 then redis.call('LLEN', pending_low) end
local rung = redis.call('LLEN', doorbell)

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
if #front.high > 0 then redis.call('RPUSH', pending_high, unpack(front.high)) end
if #front.normal > 0 then redis.call('RPUSH', pending, unpack(front.normal)) end
if #front.low > 0 then redis.call('RPUSH', pending_low, unpack(front.low)) end
-- use: free_keys, join_lines
if rung == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end

note('released', worker, held)
-- use: receipt
return answer
