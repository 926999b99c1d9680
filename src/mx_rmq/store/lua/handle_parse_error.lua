-- handle_parse_error: processing -> quarantined
-- Sets aside a message whose bytes cannot be read: one line about the error, a newline, then the
-- exact bytes. Works as move_to_dlq, but bytes beyond the whole budget are cut off.
-- Returns  same as move_to_dlq
-- Cost     same as move_to_dlq, plus the length of the bytes
-- keys: payload | processing expire_monitor | archive archive_payload archive_bytes
-- keys: keyed running blocked doorbell signals | receipt totals history

local budget    = tonumber(ARGV.budget)    -- bytes that the archive may hold, 0: no limit
local max_bytes = tonumber(ARGV.max_bytes) -- how many of the bytes to keep, 0: all
local info      = ARGV.info                -- the line about the error
local why       = ARGV.why                 -- in a few words, for the history
-- use: clock, first_answer, history, held_message

local record = redis.call('HGET', payload, id) or ''
if max_bytes > 0 then record = string.sub(record, 1, max_bytes) end
if budget > 0 then record = string.sub(record, 1, math.max(0, budget - 201 - #info)) end
local answer, arriving, kept, kind = '1', 1, info .. '\n' .. record, 'quarantined'
local weight, recount_ms, overwritten = #kept, math.huge, {}

local leaving, started = {id}, true
-- use: freed_keys, archive_size
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- use: victims
local ended = victims
-- use: drop_victims, archive_message, free_keys, forget_keys, forget_signals

note('trimmed', '', victims)
note('quarantined', worker, {id}, {why})
-- use: receipt, publish_end
return answer
