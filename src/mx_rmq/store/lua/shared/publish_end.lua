-- publish_end: wake those who wait for the message. They read why it ended.
-- needs: kind, id
-- defines: channel

local channel = ARGV.channel -- where ends of messages are published
redis.pcall('PUBLISH', channel, string.format('%s %d -1\n', kind, #id) .. id)
