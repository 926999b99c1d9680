-- tend_topics: claim the turn to look after the topics that this worker does not serve
-- A turn lasts turn_ms; each call by its holder extends it to turn_ms from now. A turn with more
-- than turn_ms left dates from before the server's clock was set back and does not count. Two
-- holders at once are harmless, so the call may be repeated.
-- Returns  for each topic: name, partitions; if another worker has the turn, only how long (ms)
-- Cost     O(T), T topics; O(1) if another worker has the turn
-- keys: caretaker topics

local worker  = ARGV.worker            -- who asks
local turn_ms = tonumber(ARGV.turn_ms) -- how long a turn lasts

local holder, left = redis.call('GET', caretaker), redis.call('PTTL', caretaker)
if holder and holder ~= worker and left >= 0 and left <= turn_ms then return left end
local known = redis.call('HGETALL', topics)

redis.call('PEXPIRE', caretaker, turn_ms) -- works at maxmemory
redis.call('SET', caretaker, worker, 'PX', turn_ms)
return known
