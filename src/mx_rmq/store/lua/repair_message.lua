-- repair_message: any -> one state
-- Brings a message that the audit found in no state, or in several, back into exactly one, unless
-- its places are right by now. A message with a record stays alive: a lease wins over a due time,
-- and a due time over a place in a list; with none of them it becomes pending. The archived copy of
-- a live message is removed. So is a record without a place if the message is archived. If neither
-- record nor archived copy is left, the rest is dropped and counted. Only a waiting message keeps
-- its expiry time. A result stays, whatever became of a later message with its id, if it has both
-- contents and a place in the index. The archives' bytes are recounted automatically. A message
-- with a key goes back to its place in line, which `keyed` has even if the record is unreadable.
-- Returns  what it did, or would do, in words; empty if all was right
-- Cost     O(N), N pending
-- keys: payload | pending* | delay_tasks* | lines ring blocked keyed running
-- keys: cancelled expiry | processing expire_monitor
-- keys: dlq dlq_payload error_parse_queue error_parse_payload results results_payload
-- keys: doorbell meta | totals history

local id         = ARGV.id                   -- the message
local priority   = ARGV.priority             -- its list if it becomes pending
local expires_ms = tonumber(ARGV.expires_ms) -- when it expires (ms), or '': never
local own_place  = ARGV.own_place            -- key, tab, level, cost: see keys.py; or ''
local dry        = ARGV.dry                  -- '1': only say what would be done
local by         = ARGV.by                   -- who requested it
-- use: clock, history

local record = redis.call('HEXISTS', payload, id) == 1
local lease = redis.call('HGET', processing, id)
local deadline = redis.call('ZSCORE', expire_monitor, id)
local marked = redis.call('SISMEMBER', cancelled, id)
local places = 0
for _, key in ipairs({pending_high, pending, pending_low}) do
  places = places + #redis.call('LPOS', key, id, 'COUNT', 0)
end
local place = redis.call('HGET', keyed, id)
local next_place = redis.call('HEXISTS', keyed, '!' .. id) == 1
local in_line, key = place and redis.call('ZSCORE', lines, place .. id), nil
if place then key = string.match(place, '^[^\t]*') end
local runs = place and redis.call('ZSCORE', running, place .. id)
local in_its_line = place and redis.call('ZLEXCOUNT', lines, '[' .. key .. '\t', '(' .. key .. '\n')
local delays, earliest, first = 0, math.huge, 0
for level, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  local due = tonumber(redis.call('ZSCORE', key, id))
  if due then delays = delays + 1 end
  if due and due < earliest then earliest, first = due, level end
end
local dead_at = redis.call('ZSCORE', dlq, id)
local dead = redis.call('HEXISTS', dlq_payload, id) == 1
local set_aside_at = redis.call('ZSCORE', error_parse_queue, id)
local set_aside = redis.call('HEXISTS', error_parse_payload, id) == 1
local kept_at = redis.call('ZSCORE', results, id)
local kept = redis.call('HEXISTS', results_payload, id) == 1
local front = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', front)
local rung = redis.call('LLEN', doorbell)
local last_token, dropped = unpack(redis.call('HMGET', meta, 'token', 'dropped'))
local expires = redis.call('ZSCORE', expiry, id)

local waiting, state = math.max(0, places - marked) + (in_line and 1 or 0), 'none'
if record and lease then
  state = 'processing'
elseif record and delays > 0 then
  state = 'delayed'
elseif record and waiting > 0 then
  state = 'pending'
elseif dead or set_aside then
  state = 'archived'
elseif record then
  state = 'pending'
end
local live = state == 'processing' or state == 'delayed' or state == 'pending'

local unlisted = waiting > 0 and state ~= 'pending' or waiting > 1
local listed = state == 'pending' and (unlisted or waiting == 0)
own_place = place or own_place
local has_line = string.find(own_place, '^[^\t]')
local joining, wake = {}, true
if listed and has_line then joining = {id, string.match(own_place, '^(.-)(\t.*)$')} end
-- use: line_ends
local out_of_line = in_line and (unlisted or state ~= 'pending')
local emptied = out_of_line and not listed and in_its_line == 1
local unplaced = place and not live
local unmarked = next_place and state ~= 'processing'
local stops = runs and state ~= 'processing' and state ~= 'delayed'
local undelayed = delays > 0 and state ~= 'delayed' or delays > 1
local unleased = lease and state ~= 'processing'
local forged = state == 'processing' and not string.find(lease, '^%d+:')
local unwatched = deadline and state ~= 'processing'
local watched = state == 'processing' and (forged or not deadline)
local unexpiring = expires and state ~= 'pending' and state ~= 'delayed'
local expiring = listed and expires_ms and not expires
local astray = marked == 1 and places == 0
local leftover = record and state == 'archived'
local undead = live and (dead or dead_at) or dead_at and not dead
local relisted = not live and dead and not dead_at
local freed = (live or dead) and (set_aside or set_aside_at) or set_aside_at and not set_aside
local reset_aside = not freed and set_aside and not set_aside_at
local unkept = kept_at and not kept
local rekept = kept and not kept_at
local lost = state == 'none'
  and (waiting > 0 or delays > 0 or lease or dead_at or set_aside_at)

local done_what = {}
local function did(so, words)
  if so then done_what[#done_what + 1] = words end
end
did(unlisted, 'taken out of the pending ones')
did(unplaced, 'place in the line of its key removed')
did(unmarked, 'place of its next record removed')
did(stops, 'no longer takes up a place of its key')
did(undelayed, state == 'delayed' and 'left with its earliest due time' or 'no longer delayed')
did(unleased, 'lease removed')
did(unwatched, 'deadline removed')
did(forged, 'lease replaced')
did(watched, 'deadline set to now, so a monitor takes it over')
did(astray and not unlisted, 'mark of a cancelled place removed')
did(leftover, 'record removed, the archived copy stays')
did(undead, live and 'dead letter removed, the live message stays'
  or 'dead letter without contents removed')
did(relisted, 'dead letter listed again')
did(freed, (live or dead) and 'quarantined copy removed, the message stays'
  or 'quarantined message without contents removed')
did(reset_aside, 'quarantined message listed again')
did(unkept, 'result without contents removed')
did(rekept, 'result listed again')
did(listed, 'put in front of the pending ones')
did(unexpiring, 'time of expiry removed')
did(expiring, 'time of expiry set again')
did(lost, 'dropped, for nothing is left of it')
if dry == '1' or #done_what == 0 then return done_what end

-- use: next_token
redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
if unlisted then
  for _, key in ipairs({pending_high, pending, pending_low}) do redis.call('LREM', key, 0, id) end
end
if out_of_line then redis.call('ZREM', lines, place .. id) end
if emptied then
  redis.call('ZREM', ring, key)
  redis.call('ZREM', blocked, key)
end
if unplaced then redis.call('HDEL', keyed, id) end
if unmarked then redis.call('HDEL', keyed, '!' .. id) end
if stops then redis.call('ZREM', running, place .. id) end
if unlisted or astray then redis.call('SREM', cancelled, id) end
if undelayed then
  for level, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    if state ~= 'delayed' or level ~= first then redis.call('ZREM', key, id) end
  end
end
if unleased then redis.call('HDEL', processing, id) end
if unwatched then redis.call('ZREM', expire_monitor, id) end
if leftover then redis.call('HDEL', payload, id) end
if undead then
  redis.call('HDEL', dlq_payload, id)
  redis.call('ZREM', dlq, id)
end
if freed then
  redis.call('HDEL', error_parse_payload, id)
  redis.call('ZREM', error_parse_queue, id)
end
if unkept then redis.call('ZREM', results, id) end
if unexpiring then redis.call('ZREM', expiry, id) end
if expiring then redis.call('ZADD', expiry, expires_ms, id) end
if forged then
  local number = string.format('%.0f', token)
  redis.call('HSET', processing, id, number .. ':repair')
  redis.call('HSET', meta, 'token', number)
end
if watched then redis.call('ZADD', expire_monitor, now, id) end
if relisted then redis.call('ZADD', dlq, now, id) end
if reset_aside then redis.call('ZADD', error_parse_queue, now, id) end
if rekept then redis.call('ZADD', results, now, id) end
if listed then
  -- use: join_lines
  if not has_line then redis.call('RPUSH', front, id) end
  if rung == 0 then redis.call('RPUSH', doorbell, '1') end
end
if lost then redis.call('HSET', meta, 'dropped', (tonumber(dropped) or 0) + 1) end

note('repaired', by, {id}, {table.concat(done_what, '; ')})
return done_what
