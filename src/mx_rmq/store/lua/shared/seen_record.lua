-- seen_record: a message, and whether its record is still the one that the caller saw.
-- needs: payload
-- defines: id, seen, current, same

local id   = ARGV.id   -- the message
local seen = ARGV.seen -- the SHA1 of its record, as the caller saw it
local current = redis.call('HGET', payload, id)
local same = current and redis.sha1hex(current) == seen
