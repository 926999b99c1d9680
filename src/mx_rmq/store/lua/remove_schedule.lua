-- remove_schedule: stored, paused -> (gone)
-- From here on no worker fires it, whatever it remembers. With a generation, another definition is
-- left alone.
-- Returns  1 removed, 2 removed by an earlier copy of this call, 0 there is none
-- Cost     O(1)
-- keys: schedules | receipt totals history

local name       = ARGV.name       -- the schedule
local generation = ARGV.generation -- of the definition to remove, or '': any
local by         = ARGV.by         -- who asks for it
-- use: first_answer, history

local known = string.match(redis.call('HGET', schedules, name) or '', '^%S+')
local answer = known and (generation == '' or generation == known) and '1' or '0'

redis.call('HDEL', schedules, '') -- no such field; works at maxmemory
if answer == '1' then redis.call('HDEL', schedules, name, '@' .. name, '!' .. name) end

note('unscheduled', by, {answer == '1' and '' or nil}, {name})
-- use: receipt
return answer
