-- waiting_place: where a waiting message waits: `in_line` if it is in the line of its key. Every
-- client waits while Redis walks a list, so only `walk` places at each end are searched. `delayed`
-- is its due time, `list` where it is.
-- needs: id, waits, pending_high, pending, pending_low, delay_tasks_high, delay_tasks
-- needs: delay_tasks_low, cancelled, expiry, keyed, lines, waiting, awaited
-- defines: walk, delayed, place, in_line, only_one, list, from, deep, passed, expires

local walk = tonumber(ARGV.walk) -- how far a list is walked from each end
local delayed = false
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  delayed = redis.call('ZSCORE', key, id) or delayed
end
redis.call('ZCARD', waiting)
redis.call('ZCARD', awaited)
local place, in_line, only_one = redis.call('HGET', keyed, id), false, false
if place and waits and not delayed and redis.call('ZSCORE', lines, place .. id) then
  local key = string.match(place, '^[^\t]*')
  in_line = place .. id
  only_one = redis.call('ZLEXCOUNT', lines, '[' .. key .. '\t', '(' .. key .. '\n') == 1 and key
end
local list, from, deep = nil, 1, false
for _, key in ipairs({pending_high, pending, pending_low}) do
  deep = redis.call('LLEN', key) > 2 * walk and not in_line or deep
  local sought = waits and not delayed and not in_line and not list
  if sought and redis.call('LPOS', key, id, 'MAXLEN', walk) then
    list = key
  elseif sought and redis.call('LPOS', key, id, 'RANK', '-1', 'MAXLEN', walk) then
    list, from = key, -1
  end
end
local passed = redis.call('SISMEMBER', cancelled, id) == 1
local expires = redis.call('ZSCORE', expiry, id)
