-- scan_fields: read
-- One step through the fields of a hash. The values, which may be large, stay on the server.
-- Returns  the next cursor ('0': that was the last step), then fields; some may come twice
-- Cost     O(step)
-- keys: hash

local cursor = ARGV.cursor -- where to continue, '0' at first
local step   = ARGV.step   -- about how many fields

local found, stride = redis.pcall('HSCAN', hash, cursor, 'COUNT', step, 'NOVALUES'), 1
if found.err then
  -- An older server hands the values over too: about a quarter of a megabyte at a time.
  local heaviest = 1
  for _, field in ipairs(redis.call('HRANDFIELD', hash, -5)) do
    heaviest = math.max(heaviest, redis.call('HSTRLEN', hash, field))
  end
  step = math.max(1, math.min(tonumber(step), math.floor(262144 / heaviest)))
  found, stride = redis.call('HSCAN', hash, cursor, 'COUNT', step), 2
end
local reply = {found[1]}
for i = 1, #found[2], stride do reply[#reply + 1] = found[2][i] end
return reply
