-- reschedule_message: pending | delayed -> delayed | pending
-- Moves a waiting message to another due time, if its record is still the one that the caller saw.
-- The server stamps the due time into the record. A message that is due now is pending: it keeps
-- its place if it has one, or goes behind the others. When it expires does not change. With a key,
-- it joins its line when it is due.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 not there, p in processing,
--          c its record has changed
-- Cost     that of cancel_message, and the length of the record
-- keys: payload | pending* | delay_tasks* | cancelled expiry | processing
-- keys: lines ring blocked keyed running | waiting awaited signals | doorbell doorbell_delay
-- keys: receipt totals history

local priority = ARGV.priority           -- high, normal or low
local record   = ARGV.record             -- without its first brace and its due time
local delay_ms = tonumber(ARGV.delay_ms) -- how long from now it is due
local at_ms    = tonumber(ARGV.at_ms)    -- when it is due (ms), or '': see delay_ms
-- use: clock, first_answer, history, seen_record

local answer = '1'
if redis.call('HEXISTS', processing, id) == 1 then
  answer = 'p'
elseif not same then
  answer = current and 'c' or '0'
end
local waits = answer == '1'
-- use: waiting_place
redis.call('ZCARD', ring)

local due = math.max(now, at_ms or now + delay_ms)
local later = waits and due > now
waits = waits and (later or delayed) -- whether it leaves its place
local soonest, due_times = due, {high = {}, normal = {}, low = {}}
if later then due_times[priority] = {due, id} end
local leaving, started, joining, wake = {waits and id or nil}, false, {}, true
-- use: earlier, freed_keys
local own_line = place and string.find(place, '^[^\t]')
local unnumbered = own_line and string.gsub(place, '^([^\t]*\t%d)%d*', '%1')
if waits and not later and own_line then
  joining = {id, string.match(unnumbered, '^(.-)(\t.*)$')}
end
-- use: line_ends
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', behind)
local ringing = redis.call('LLEN', doorbell)

redis.call('ZREMRANGEBYRANK', delay_tasks, 1, 0) -- removes nothing, but works at maxmemory
-- use: free_keys, leave_place
if waits then
  redis.call('HSET', payload, id, string.format('{"due":%.0f,', due) .. record)
  if expires then redis.call('ZADD', expiry, expires, id) end
end
if later then
  -- use: add_delayed
  if own_line then redis.call('HSET', keyed, id, unnumbered) end
elseif waits then
  -- use: join_lines
  if not own_line then redis.call('LPUSH', behind, id) end
  if ringing == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end
end

note('rescheduled', '', {answer == '1' and id or nil}, {string.format('%.0f', due - now)})
-- use: receipt
return answer
