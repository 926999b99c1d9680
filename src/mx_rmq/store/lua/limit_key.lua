-- limit_key: what an operator decides about a key, or about the whole topic
-- Changes only what is given: '' keeps a value, '-' restores what the handler declares. Messages
-- that this may allow to start are looked at again. A bucket is stored as the time at which it is
-- full, so with a faster rate that time comes sooner; with no rate the bucket is forgotten.
-- Returns  1 done, 2 done by an earlier copy of this call
-- Cost     O(log N), N blocked
-- keys: lines pending* | blocked limits buckets | doorbell meta | receipt totals history

local key      = ARGV.key      -- the key, or '': the whole topic
local running  = ARGV.running  -- how many may run at the same time
local interval = ARGV.interval -- ms per unit of cost
local burst    = ARGV.burst    -- how many units may come at once
local weight   = ARGV.weight   -- how many turns it gets for each turn of the others
local pause_ms = ARGV.pause_ms -- how long nothing starts; 'on': until resumed
local reason   = ARGV.reason   -- why it is paused
local by       = ARGV.by       -- who asks for it
local about    = ARGV.about    -- what is changed, in words, for the history
-- use: clock, first_answer, history

local last_token, clock_ahead, declared, full_at =
  unpack(redis.call('HMGET', meta, 'token', 'clock_ahead', 'limits', 'bucket'))
-- use: line_clock
local before = redis.call('HGET', limits, key) or '- - - - - '
local old = {string.match(before, '^(%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')}
local new = {running, interval, burst, weight, pause_ms, reason}
if pause_ms == 'on' then new[5] = '9000000000000000' end
if tonumber(pause_ms) then new[5] = string.format('%.0f', at + pause_ms) end
if pause_ms == '' then new[6] = '' end
for n = 1, 6 do
  if new[n] == '' and (n < 6 or pause_ms == '') then new[n] = old[n] or n < 6 and '-' or '' end
end
local text = table.concat(new, ' ')

local rates = key == '' and '^%S+ (%S+) (%S+)' or '^%S+ %S+ %S+ %S+ (%S+) (%S+)'
local usual, usual_burst = string.match(declared or '', rates)
local old_per = tonumber(old[2]) or tonumber(usual)
local new_per = tonumber(new[2]) or tonumber(usual)
local old_burst = tonumber(old[2]) and tonumber(old[3]) or tonumber(usual_burst) or 0
local new_burst = tonumber(new[2]) and tonumber(new[3]) or tonumber(usual_burst) or 0
if key ~= '' then full_at = redis.call('ZSCORE', buckets, key) end
local full, sooner = tonumber(full_at) or 0, 0
if old_per and new_per then
  local missing = new_burst - old_burst + (full - at) / old_per
  sooner = at + math.max(0, missing) * new_per
end
local moved = full > at and sooner < full
local blocked_until = redis.call('ZSCORE', blocked, key)
local waiting = redis.call('ZCARD', lines)
for _, list in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', list)
end
local rung, answer = redis.call('LLEN', doorbell), '1'

redis.call('HDEL', limits, key) -- works at maxmemory
if text ~= '- - - - - ' then redis.call('HSET', limits, key, text) end
if moved and key == '' then redis.call('HSET', meta, 'bucket', string.format('%.17g', sooner)) end
if moved and key ~= '' then redis.call('ZADD', buckets, string.format('%.17g', sooner), key) end
if blocked_until then redis.call('ZADD', blocked, 0, key) end
if waiting > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

note('limited', by, {''}, {about})
-- use: receipt
return answer
