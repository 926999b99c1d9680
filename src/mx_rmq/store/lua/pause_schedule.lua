-- pause_schedule: stored -> paused
-- No tick fires until resume_schedule. A cron that is declared in code has no name.
-- Returns  1 paused now, 2 paused by an earlier copy of this call, 0 it was paused already or there
--          is none
-- Cost     O(1)
-- keys: schedules | receipt totals history

local name   = ARGV.name   -- the schedule; '': the cron that is declared in code
local reason = ARGV.reason -- why
local shown  = ARGV.shown  -- its name in the history
local by     = ARGV.by     -- who asks for it
-- use: clock, first_answer, history

local stored = name == '' or redis.call('HEXISTS', schedules, name) == 1
local paused = redis.call('HEXISTS', schedules, '!' .. name) == 1
local answer = stored and not paused and '1' or '0'

redis.call('HDEL', schedules, '') -- no such field; works at maxmemory
if answer == '1' then
  redis.call('HSET', schedules, '!' .. name, string.format('%.0f ', now) .. reason)
end

note('schedule_paused', by, {answer == '1' and '' or nil}, {shown})
-- use: receipt
return answer
