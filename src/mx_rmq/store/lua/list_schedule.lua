-- list_schedule: where a schedule's definition is
-- Changes the list of schedules if it is still as the caller saw it, and tells all workers. Without
-- a name it only tells them.
-- Returns  where the definition is after this call, or ''
-- Cost     O(1)
-- keys: schedule_topics

local name    = ARGV.name    -- the schedule; '': only tell
local before  = ARGV.before  -- what the caller saw, '': nothing
local after   = ARGV.after   -- what replaces it, '': nothing
local channel = ARGV.channel -- where changes are published

local known = name ~= '' and redis.call('HGET', schedule_topics, name) or ''
redis.call('HLEN', schedule_topics)
if name ~= '' and known ~= before then return known end

redis.call('HDEL', schedule_topics, name ~= '' and name or '!') -- works at maxmemory
if after ~= '' then redis.call('HSET', schedule_topics, name, after) end
redis.pcall('HINCRBY', schedule_topics, '', 1)
redis.pcall('PUBLISH', channel, name)
return after
