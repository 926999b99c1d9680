-- move_to_dlq: processing -> dead
-- Archives a message that gets no further attempt. Its final record carries the reason and the
-- errors. The oldest dead letters are dropped if there are too many, if they are too old, or if
-- they take more bytes than the budget; a letter larger than the whole budget is kept alone. A TTL
-- on the field is a second net, for a topic that is no longer trimmed.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 the worker no longer holds it, r it
--          does, but the message was replaced: nothing is done, see release_replaced
-- Cost     O(log P + D log A), P in processing, A archived, D dropped, at most 10,200
-- keys: payload | processing expire_monitor | archive archive_payload archive_bytes
-- keys: keyed running blocked doorbell signals | receipt totals history

local budget = tonumber(ARGV.budget) -- bytes that the archive may hold, 0: no limit
local record = ARGV.record           -- its final record
local why    = ARGV.why              -- in a few words, for the history
-- use: clock, first_answer, history, held_message

redis.call('HLEN', payload)
local answer, arriving, kept, kind = '1', 1, record, 'dead'
local weight, recount_ms, overwritten = #kept, math.huge, {}

local leaving, started = {id}, true
-- use: freed_keys, archive_size
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- use: victims
local ended = victims
-- use: drop_victims, archive_message, free_keys, forget_keys, forget_signals

note('trimmed', '', victims)
note('died', worker, {id}, {why})
-- use: receipt, publish_end
return answer
