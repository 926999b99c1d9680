-- tend_topics: one worker at a time looks after the topics that others serve, or that nobody serves
--
-- Asks for the turn and, if the caller has it now, returns the registry of topics. A turn lasts
-- turn_ms and whoever has it may ask again: it then lasts that long from now. A turn that would
-- last longer than turn_ms is left over from a server clock that was set back; it does not count.
-- Two workers at once would be harmless, so the call is harmless to repeat.
--
-- Returns  nothing if another worker has the turn, else for each topic: name, partitions
-- Cost     O(T), T topics; O(1) if another worker has the turn

local caretaker = KEYS[1]  -- STRING  the worker that has the turn
local topics    = KEYS[2]  -- HASH  topic -> number of partitions

local worker  = ARGV[1]           -- who asks
local turn_ms = tonumber(ARGV[2]) -- how long a turn lasts

local holder, left = redis.call('GET', caretaker), redis.call('PTTL', caretaker)
if holder and holder ~= worker and left >= 0 and left <= turn_ms then return false end
local known = redis.call('HGETALL', topics)

redis.call('PEXPIRE', caretaker, turn_ms) -- at maxmemory Redis allows it, and then what follows
redis.call('SET', caretaker, worker, 'PX', turn_ms)
return known
