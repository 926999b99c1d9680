-- store_schedule: (new), stored -> stored
-- Replaces the definition of the same name. A tick fires only for the definition that is stored, so
-- from here on no worker fires an older one. With the same timetable, ticks go on as before; with
-- another one, only ticks after now fire. A pause stays.
-- Returns  1 stored, 2 stored by an earlier copy of this call
-- Cost     O(1)
-- keys: schedules | receipt totals history

local name       = ARGV.name       -- the schedule
local generation = ARGV.generation -- a new one for each definition
local timetable  = ARGV.timetable  -- differs if the ticks differ
local definition = ARGV.definition -- one line of JSON
local by         = ARGV.by         -- who asks for it
-- use: clock, first_answer, history

local before = redis.call('HGET', schedules, name) or ''
local tick = tonumber(redis.call('HGET', schedules, '@' .. name))
if not tick or string.match(before, '^%S+ (%S+)') ~= timetable then tick = now end
local answer = '1'

redis.call('HDEL', schedules, name) -- works at maxmemory
redis.call('HSET', schedules, name, table.concat({generation, timetable, definition}, ' '),
  '@' .. name, string.format('%.0f', tick))

note('scheduled', by, {''}, {name})
-- use: receipt
return answer
