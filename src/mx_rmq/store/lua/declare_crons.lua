-- declare_crons: which crons workers declare in code
-- Notes them and when, so that operators see them. With forget_ms, also removes up to 1,000 that no
-- worker has declared for that long. Safe to repeat.
-- Returns  now (ms)
-- Cost     O(1) per cron, with forget_ms O(N), N schedules
-- keys: schedule_topics

local forget_ms = tonumber(ARGV.forget_ms) -- how long a cron may be undeclared, 0: forever
local each, width = ARGV.each, 2           -- per cron: topic, declaration
-- use: clock

local time = string.format('%.0f', now)
local gone, declared = {}, {}
for i = each, #ARGV, width do
  gone[#gone + 1] = '!' .. ARGV[i] -- HDEL works at maxmemory
  declared[#declared + 1], declared[#declared + 2] = '!' .. ARGV[i], time .. ' ' .. ARGV[i + 1]
end
redis.call('HLEN', schedule_topics)
local known = forget_ms > 0 and redis.call('HGETALL', schedule_topics) or {}
local most = #gone + 1000
for i = 1, #known, 2 do
  local seen = tonumber(string.match(known[i + 1], '^(%d+) '))
  local old = not seen or seen <= now - forget_ms
  if string.byte(known[i]) == 33 and old and #gone < most then gone[#gone + 1] = known[i] end
end

if #gone > 0 then redis.call('HDEL', schedule_topics, unpack(gone)) end
if #declared > 0 then redis.call('HSET', schedule_topics, unpack(declared)) end
return time
