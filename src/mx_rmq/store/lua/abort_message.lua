-- abort_message: pending | delayed | processing -> dead
-- Archives a message that must not run any more, wherever it is, if its record is still the one
-- that the caller saw. Works as move_to_dlq, but needs no lease. Its holder loses the lease and
-- can settle nothing; a worker that listens to the channel stops the handler. A refusal leaves no
-- receipt: a late copy finds another record, or none.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 not there, c its record has changed
-- Cost     that of cancel_message and of move_to_dlq, and the length of the record
-- keys: payload | pending* | delay_tasks* | cancelled expiry | processing expire_monitor
-- keys: lines ring blocked keyed running doorbell | waiting awaited signals | archive archive_payload archive_bytes
-- keys: receipt totals history

local budget  = tonumber(ARGV.budget) -- bytes that the archive may hold, 0: no limit
local record  = ARGV.record           -- its final record
local why     = ARGV.why              -- in a few words, for the history
local by      = ARGV.by               -- who asks for it
local aborts  = ARGV.aborts           -- the channel that workers listen to
-- use: clock, first_answer, history, seen_record
if not same then return current and 'c' or '0' end

local lease = redis.call('HGET', processing, id)
redis.call('ZCARD', expire_monitor)
local waits, leaving, started = not lease, {id}, lease
-- use: waiting_place, freed_keys
redis.call('ZCARD', ring)

local answer, arriving, kept, kind = '1', 1, record, 'dead'
local weight, recount_ms, overwritten = #kept, math.huge, {}

-- use: archive_size
if redis.call('HEXISTS', archive_payload, id) == 1 then sealed, began = false, false end

-- use: victims
local ended = victims
-- use: drop_victims, free_keys, leave_place, archive_message, forget_keys, forget_signals
redis.call('HDEL', keyed, '!' .. id) -- the place that replace_message may have noted

note('trimmed', '', victims)
redis.pcall('HINCRBY', totals, 'died', 1)
note('aborted', by, {id}, {why})
-- use: receipt
if lease then redis.pcall('PUBLISH', aborts, string.match(lease, '^%d*') .. ' ' .. id) end
-- use: publish_end
return answer
