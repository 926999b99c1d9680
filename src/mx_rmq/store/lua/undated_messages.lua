-- undated_messages: read
-- Which waiting messages have no expiry time. Seven places are read one after the other: 1 to 3 are
-- the pending lists, from their oldest end, 4 to 6 the delayed ones, 7 the lines. If there are as
-- many expiry times as messages wait, none is read.
-- Returns  the place and the position to go on from, place 0: nowhere; then for each message: id,
--          record
-- Cost     O(max_count), O(1) if all have one
-- keys: payload | pending* | delay_tasks* | lines | cancelled expiry

local place     = tonumber(ARGV.place)     -- which place to read
local from      = tonumber(ARGV.from)      -- how many ids of it to skip
local max_count = tonumber(ARGV.max_count) -- how many ids to read

local places = {
  pending_high, pending, pending_low, delay_tasks_high, delay_tasks, delay_tasks_low, lines,
}
local undated = -redis.call('SCARD', cancelled) - redis.call('ZCARD', expiry)
for n = 1, 3 do undated = undated + redis.call('LLEN', places[n]) end
for n = 4, 7 do undated = undated + redis.call('ZCARD', places[n]) end
if undated <= 0 then return {0, 0} end

local all, ids = {}, {}
if place < 4 then
  all = redis.call('LRANGE', places[place], -from - max_count, -from - 1)
else
  all = redis.call('ZRANGE', places[place], from, from + max_count - 1)
end
for n = 1, place == 7 and #all or 0 do
  all[n] = string.match(all[n], '^[^\t]*\t%d+ %d+ (.*)$') or all[n]
end
local times = #all > 0 and redis.call('ZMSCORE', expiry, unpack(all)) or {}
for n = 1, #all do
  if not times[n] then ids[#ids + 1] = all[n] end
end
-- use: records_that_fit

if fit == #ids then from = from + max_count end
if fit == #ids and #all < max_count then place, from = (place + 1) % 8, 0 end
local reply = {place, from}
for n = 1, fit do
  if records[n] then
    reply[#reply + 1] = ids[n]
    reply[#reply + 1] = records[n]
  end
end
return reply
