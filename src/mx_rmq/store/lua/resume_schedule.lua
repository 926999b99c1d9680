-- resume_schedule: paused -> stored
-- Ticks up to now are skipped. A cron that is declared in code has no name.
-- Returns  1 resumed now, 2 resumed by an earlier copy of this call, 0 it was not paused
-- Cost     O(1)
-- keys: schedules meta | receipt totals history

local name  = ARGV.name  -- the schedule; '': the cron that is declared in code
local shown = ARGV.shown -- its name in the history
local by    = ARGV.by    -- who asks for it
-- use: clock, first_answer, history

local ticks, field = schedules, '@' .. name
if name == '' then ticks, field = meta, 'tick' end
redis.call('HLEN', meta)
local answer = redis.call('HEXISTS', schedules, '!' .. name) == 1 and '1' or '0'

redis.call('HDEL', schedules, '!' .. name)
if answer == '1' then redis.call('HSET', ticks, field, string.format('%.0f', now)) end

note('schedule_resumed', by, {answer == '1' and '' or nil}, {shown})
-- use: receipt
return answer
