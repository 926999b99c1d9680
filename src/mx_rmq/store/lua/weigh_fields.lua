-- weigh_fields: read
-- The sizes of values in a hash. Callers ask before they read them, so that no reply gets huge.
-- Returns  the bytes of each value; 0: there is none
-- Cost     O(1) per field
-- keys: hash

local each = ARGV.each -- per value: field

local reply = {}
for i = each, #ARGV do reply[i] = redis.call('HSTRLEN', hash, ARGV[i]) end
return reply
