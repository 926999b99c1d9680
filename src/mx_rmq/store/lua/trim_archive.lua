-- trim_archive: dead | quarantined | completed -> (gone), by age, count and bytes
-- Drops old messages as move_to_dlq does, for a topic that archives nothing any more. If the last
-- count of the bytes is more than six hours old, counts them again, about 1,000 messages per call.
-- Also shortens the history, by at most 10,000 entries.
-- Returns  how many it dropped, then 1 if it has not finished counting
-- Cost     O(log A) per message dropped, A archived, and O(1) per message counted
-- keys: archive archive_payload archive_bytes | signals | totals history

local kind   = ARGV.kind             -- which archive: dead, quarantined or completed
local budget = tonumber(ARGV.budget) -- bytes that the archive may hold, 0: no limit
-- use: clock, history

local arriving, weight, recount_ms, overwritten = 0, 0, 21600000, {}
redis.pcall('XLEN', history)
-- use: archive_size, victims
local ended, any_signals = victims, kind ~= 'completed' and redis.call('ZCARD', signals) > 0
-- use: drop_victims, forget_signals
if kind ~= 'completed' then note('trimmed', '', victims) end
redis.pcall('XTRIM', history, 'MAXLEN', '~', remember) -- the limit may have been lowered
return {#victims, sum and 1 or 0}
