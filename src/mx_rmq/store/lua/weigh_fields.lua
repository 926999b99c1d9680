-- weigh_fields: read
--
-- How long values of a hash are, before somebody reads them: a reply shall not become huge.
--
-- Returns  the bytes of each value; 0: there is none
-- Cost     O(1) a field

local hash = KEYS[1]  -- HASH  field -> value

local each = 1 -- per value: field

local reply = {}
for i = each, #ARGV do reply[i] = redis.call('HSTRLEN', hash, ARGV[i]) end
return reply
