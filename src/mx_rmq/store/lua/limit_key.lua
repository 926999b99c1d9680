-- limit_key: what an operator decides about a key, or about the whole topic
-- Changes only what is given: '' keeps a value, '-' restores what the handler declares. Messages
-- that this may allow to start are looked at again.
-- Returns  1 done, 2 done by an earlier copy of this call
-- Cost     O(log N), N blocked
-- keys: lines pending* | blocked limits | doorbell meta | receipt totals history

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

local last_token, clock_ahead = unpack(redis.call('HMGET', meta, 'token', 'clock_ahead'))
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
local blocked_until = redis.call('ZSCORE', blocked, key)
local waiting = redis.call('ZCARD', lines)
for _, list in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', list)
end
local rung, answer = redis.call('LLEN', doorbell), '1'

redis.call('HDEL', limits, key) -- works at maxmemory
if text ~= '- - - - - ' then redis.call('HSET', limits, key, text) end
if blocked_until then redis.call('ZADD', blocked, 0, key) end
if waiting > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

note('limited', by, {''}, {about})
-- use: receipt
return answer
