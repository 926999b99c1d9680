-- register_topics: topics exist
-- Adds topics to the registry, each with its number of partitions. The number only grows: a caller
-- that knows fewer learns the real number here. Workers also declare the default time to live of
-- their topics, in the field '!name', and producers learn it. That is best effort (pcall): workers
-- declare it again.
-- Returns  for each topic: how many partitions it has; its default time to live (ms), 0: none
-- Cost     O(1) per topic
-- keys: topics

-- A time to live of 0 means none; '' means that the caller does not declare it.
local each, width = ARGV.each, 3 -- per topic: name, partitions, ttl_ms

local answer, grown, declared, dropped = {}, {}, {}, {}
for i = each, #ARGV, width do
  local name, wanted, ttl_ms = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local known = tonumber(redis.call('HGET', topics, name)) or 0
  local life = math.max(0, tonumber(redis.call('HGET', topics, '!' .. name)) or 0)
  if known < wanted then
    known = wanted
    grown[#grown + 1], grown[#grown + 2] = name, string.format('%d', known)
  end
  if ttl_ms and ttl_ms ~= life then
    life = ttl_ms
    if life == 0 then dropped[#dropped + 1] = '!' .. name end
    if life > 0 then
      declared[#declared + 1], declared[#declared + 2] = '!' .. name, string.format('%.0f', life)
    end
  end
  answer[#answer + 1], answer[#answer + 2] = known, life
end
if #dropped > 0 then redis.pcall('HDEL', topics, unpack(dropped)) end
if #grown > 0 then redis.call('HSET', topics, unpack(grown)) end
if #declared > 0 then redis.pcall('HSET', topics, unpack(declared)) end
return answer
