-- move_to_dlq: processing -> dead
-- Archives a message that gets no further attempt. Its final record carries the reason and the
-- errors. The oldest dead letters are dropped if there are too many, if they are too old, or if
-- they take more bytes than the budget; a letter larger than the whole budget is kept alone. A TTL
-- on the field is a second net, for a topic that is no longer trimmed.
--
-- Returns  1 done, 2 done by an earlier copy of this call, 0 the worker no longer holds it
-- Cost     O(log P + D log A), P in processing, A archived, D dropped: at most 200 for age and
--          count, and 10,000 for bytes
-- keys: payload | processing expire_monitor | archive archive_payload archive_bytes
-- keys: receipt totals history

local now_ms    = ARGV[1]           -- the time (ms), or '' for the server's
local call      = tonumber(ARGV[2]) -- this call's number in its lane
local worker    = ARGV[3]           -- who holds the leases
local keep      = tonumber(ARGV[4]) -- archived messages to keep, 0: all
local ttl_ms    = tonumber(ARGV[5]) -- age at which they are dropped, 0: never
local budget    = tonumber(ARGV[6]) -- bytes that the archive may hold, 0: no limit
local hexpire_s = tonumber(ARGV[7]) -- TTL of the archived field, 0: the server has no HEXPIRE
local id        = ARGV[8]           -- the message
local token     = ARGV[9]           -- of its lease
local record    = ARGV[10]          -- its final record
local why       = ARGV[11]          -- in a few words, for the history
local remember  = ARGV[12]          -- history entries to keep, 0: write none
-- use: clock, first_answer, history

if redis.call('HGET', processing, id) ~= token .. ':' .. worker then return '0' end
redis.call('ZCARD', expire_monitor)
redis.call('HLEN', payload)
local answer, arriving, kept, kind = '1', 1, record, 'dead'
local weight, recount_ms = #kept, math.huge

-- use: archive_size
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- use: victims, size_without_victims

redis.call('ZREM', expire_monitor, id)
redis.call('HDEL', processing, id)
redis.call('HDEL', payload, id)
-- use: drop_victims, archive_message

note('trimmed', '', victims)
note('died', worker, {id}, {why})
-- use: receipt
return answer
