-- weigh_hash: read
-- Estimates how many bytes a hash holds from a sample of its values, so that it costs the same for
-- a million fields. Each field counts another 150 bytes for its name and overhead.
-- Returns  the number of fields, then of bytes
-- Cost     O(1)
-- keys: hash

local sample = ARGV.sample -- how many values to read

local fields, found, bytes = redis.call('HLEN', hash), {}, 0
if fields > 0 then found = redis.call('HRANDFIELD', hash, sample) end
for _, field in ipairs(found) do bytes = bytes + redis.call('HSTRLEN', hash, field) end
return {fields, math.floor(fields * (150 + bytes / math.max(1, #found)))}
