-- register_topics: topics exist
-- Adds topics to the registry, each with its number of partitions. The number only grows: a caller
-- that knows fewer learns the real number here. Workers also declare the default time to live of
-- their topics, and producers learn it. That is best effort (pcall): a user with the previous
-- release's rights may not, and workers declare it again.
-- Returns  for each topic: how many partitions it has; its default time to live (ms), 0: none
-- Cost     O(1) per topic
-- keys: topics ttls

-- A time to live of 0 means none; '' means that the caller does not declare it.
local each, width = ARGV.each, 3 -- per topic: name, partitions, ttl_ms

local names = {}
for i = each, #ARGV, width do names[#names + 1] = ARGV[i] end
local lives = redis.pcall('HMGET', ttls, unpack(names))
local answer, grown, declared, dropped = {}, {}, {}, {}
for n = 1, #names do
  local i = each + (n - 1) * width
  local name, wanted, ttl_ms = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local known = tonumber(redis.call('HGET', topics, name)) or 0
  local life = math.max(0, tonumber(lives[n]) or 0)
  if known < wanted then
    known = wanted
    grown[#grown + 1] = name
    grown[#grown + 1] = string.format('%d', known)
  end
  if ttl_ms and ttl_ms ~= life then
    life = ttl_ms
    if life == 0 then dropped[#dropped + 1] = name end
    if life > 0 then
      declared[#declared + 1] = name
      declared[#declared + 1] = string.format('%.0f', life)
    end
  end
  answer[#answer + 1] = known
  answer[#answer + 1] = life
end
if #dropped > 0 then redis.pcall('HDEL', ttls, unpack(dropped)) end
if #declared > 0 then redis.pcall('HSET', ttls, unpack(declared)) end
if #grown > 0 then redis.call('HSET', topics, unpack(grown)) end
return answer
