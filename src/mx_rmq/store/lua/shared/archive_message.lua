-- archive_message: move the message to the archive, after the victims: it may be one of them.
-- needs: expire_monitor, processing, payload, archive_payload, id, kept, archive, now
-- defines: hexpire_s

local hexpire_s = tonumber(ARGV.hexpire_s) -- TTL of the archived field (s), 0: none
redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
redis.call('HDEL', payload, id)
redis.call('HSET', archive_payload, id, kept)
redis.call('ZADD', archive, now, id)
if hexpire_s > 0 then redis.call('HEXPIRE', archive_payload, hexpire_s, 'FIELDS', 1, id) end
