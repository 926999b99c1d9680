-- handle_parse_error: processing -> quarantined
-- Sets aside a message whose bytes cannot be read: one line about the error, a newline, then the
-- exact bytes. Works as move_to_dlq, but bytes beyond the whole budget are cut off.
--
-- Returns  same as move_to_dlq
-- Cost     same as move_to_dlq, plus the length of the bytes
-- keys: payload | processing expire_monitor | archive archive_payload archive_bytes
-- keys: receipt totals history

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- this call's number in its lane
local worker    = ARGV[3]           -- who holds the leases
local keep      = tonumber(ARGV[4]) -- archived messages to keep, 0: all
local ttl_ms    = tonumber(ARGV[5]) -- age at which they are dropped, 0: never
local budget    = tonumber(ARGV[6]) -- bytes that the archive may hold, 0: no limit
local hexpire_s = tonumber(ARGV[7]) -- TTL of the archived field, 0: the server has no HEXPIRE
local max_bytes = tonumber(ARGV[8]) -- how many of the bytes to keep, 0: all
local id        = ARGV[9]           -- the message
local token     = ARGV[10]          -- of its lease
local info      = ARGV[11]          -- the line about the error
local why       = ARGV[12]          -- in a few words, for the history
local remember  = ARGV[13]          -- history entries to keep, 0: write none
-- use: clock, first_answer, history

if redis.call('HGET', processing, id) ~= token .. ':' .. worker then return '0' end
redis.call('ZCARD', expire_monitor)
local record = redis.call('HGET', payload, id) or ''
if max_bytes > 0 then record = string.sub(record, 1, max_bytes) end
if budget > 0 then record = string.sub(record, 1, math.max(0, budget - 201 - #info)) end
local answer, arriving, kept, kind = '1', 1, info .. '\n' .. record, 'quarantined'
local weight, recount_ms = #kept, math.huge

-- use: archive_size
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- use: victims, size_without_victims

redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
redis.call('HDEL', payload, id)
-- use: drop_victims, archive_message

note('trimmed', '', victims)
note('quarantined', worker, {id}, {why})
-- use: receipt
return answer
