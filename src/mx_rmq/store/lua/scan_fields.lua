-- scan_fields: read
--
-- One step through the fields of a hash. The values, which may be large, stay on the server.
--
-- Returns  the next cursor ('0': that was the last step), then fields; some may come twice
-- Cost     O(step)

local hash = KEYS[1]  -- HASH  field -> value

local cursor = ARGV[1] -- where to go on, '0' at first
local step   = ARGV[2] -- about how many fields

local found = redis.call('HSCAN', hash, cursor, 'COUNT', step)
local reply = {found[1]}
for i = 1, #found[2], 2 do reply[#reply + 1] = found[2][i] end
return reply
