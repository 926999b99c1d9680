-- produce_cron_message: (new) -> pending, once per tick
-- Every worker calls this at each tick of a schedule; the first call makes the message. Only a
-- tick later than the last one fires, so the call needs no receipt. Without a record it only
-- reports; the first report ever notes the time, so that a tick that every worker misses is noticed
-- later. A last tick more than a minute ahead is ignored: the clock was set back since. The cap on
-- waiting messages does not apply. A paused schedule does not fire, and neither does one whose
-- definition is no longer the caller's. A cron that is declared in code has no name, and no
-- definition here.
-- Returns  now (ms); the last tick (ms) after this call, or ''; 1 if this call made the message, 0
--          if the tick is not due yet, has fired, or its id is taken; '', 'paused' or 'gone'
-- Cost     O(1)
-- keys: payload | pending* | expiry | dlq_payload error_parse_payload | doorbell meta schedules
-- keys: totals history

local id         = ARGV.id                -- the message's
local tick_ms    = tonumber(ARGV.tick_ms) -- when it is due (ms)
local record     = ARGV.record            -- without its first brace; '': only report
local priority   = ARGV.priority          -- high, normal or low
local live_ms    = tonumber(ARGV.live_ms) -- its time to live (ms), or '': none
local name       = ARGV.name              -- the schedule; '': the cron that is declared in code
local generation = ARGV.generation        -- of the caller's definition
-- use: clock, history

local report = record == ''
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
local ticks, field = meta, 'tick'
local own_tick = redis.call('HGET', meta, 'tick')
local state = redis.call('HEXISTS', schedules, '!' .. name) == 1 and 'paused' or ''
if name ~= '' then
  ticks, field = schedules, '@' .. name
  own_tick = redis.call('HGET', schedules, field)
  local definition = redis.call('HGET', schedules, name) or ''
  if string.match(definition, '^%S+') ~= generation then state = 'gone' end
end
local last = tonumber(own_tick)
if last and last > now + 60000 then last = nil end
local live = redis.call('HEXISTS', payload, id) == 1
local dead = redis.call('HEXISTS', dlq_payload, id) == 1
local quarantined = redis.call('HEXISTS', error_parse_payload, id) == 1
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)
redis.call('ZCARD', expiry)

local time, before = string.format('%.0f', now), last and string.format('%.0f', last) or ''
if state ~= '' or report and last then return {time, before, 0, state} end
if not report and (tick_ms > now or last and last >= tick_ms) then return {time, before, 0, ''} end

local tick = string.format('%.0f', report and now or tick_ms)
if report or live or dead or quarantined then
  redis.call('HSET', ticks, field, tick)
  return {time, tick, 0, ''}
end

redis.call('HSET', payload, id, string.format('{"created_at":%.0f,', now) .. record)
redis.call('LPUSH', behind, id)
redis.call('HSET', ticks, field, tick)
if live_ms then redis.call('ZADD', expiry, now + live_ms, id) end
if rung == 0 then redis.call('RPUSH', doorbell, '1') end
note('produced', 'cron', {id})
return {time, tick, 1, ''}
