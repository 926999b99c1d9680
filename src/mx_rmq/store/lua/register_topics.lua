-- register_topics: topics exist
-- Adds topics to the registry, each with its number of partitions. The number only grows: a caller
-- that knows fewer learns the real number here.
-- Returns  for each topic: how many partitions it has
-- Cost     O(1) per topic
-- keys: topics

local each = ARGV.each -- per topic: name, partitions

local answer, grown = {}, {}
for i = each, #ARGV, 2 do
  local name, wanted = ARGV[i], tonumber(ARGV[i + 1])
  local known = tonumber(redis.call('HGET', topics, name)) or 0
  if known < wanted then
    known = wanted
    grown[#grown + 1] = name
    grown[#grown + 1] = string.format('%d', known)
  end
  answer[#answer + 1] = known
end
if #grown > 0 then redis.call('HSET', topics, unpack(grown)) end
return answer
