-- beat_worker: a worker is alive
-- Notes when a worker was last seen, and what it says about itself. With forget_ms, also removes up
-- to 1,000 workers that were silent for that long or whose entry cannot be read. Safe to repeat.
-- Returns  now (ms)
-- Cost     O(1), with forget_ms O(W), W workers
-- keys: workers

local worker    = ARGV.worker              -- who is alive
local info      = ARGV.info                -- what it says of itself, one line of JSON
local forget_ms = tonumber(ARGV.forget_ms) -- how long the others may be silent, 0: forever
-- use: clock

redis.call('HLEN', workers)
local gone = {worker} -- itself, too: HDEL works at maxmemory
local known = forget_ms > 0 and redis.call('HGETALL', workers) or {}
for i = 1, #known, 2 do
  local seen = tonumber(string.match(known[i + 1], '^(%d+) '))
  if (not seen or seen <= now - forget_ms) and #gone <= 1000 then gone[#gone + 1] = known[i] end
end

local time = string.format('%.0f', now)
redis.call('HDEL', workers, unpack(gone))
redis.call('HSET', workers, worker, time .. ' ' .. info)
return time
