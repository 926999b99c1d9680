-- retry_message: processing -> delayed | waiting
-- Delays messages by delay_ms, each with a new record from the caller. Failed messages are retried;
-- those that their handler wants later are snoozed; those that only a newer release can read are
-- postponed. If a key may have only one message running, and none may overtake, the message keeps
-- its place: its line waits until it is due. `hold` holds back the whole key in any case. Times are
-- in ms; `expires`, `hold` and `awaits` may be ''. `awaits` are the names of signals, one per line:
-- the message is parked until all of them have arrived, at the latest until it is due; '' as its
-- delay means forever. If all of them are there already, it is due now. A message that waits for
-- others (\x01 begins the name) has not begun, so it keeps no place: they may be behind it in its
-- line.
-- Returns  same as complete_message
-- Cost     O(log P + log D) per message, P in processing, D delayed
-- keys: payload | delay_tasks* | expiry | processing expire_monitor | doorbell_delay
-- keys: keyed running blocked limits buckets doorbell meta | waiting awaited signals
-- keys: receipt totals history

local what = ARGV.what -- what the history calls it: retried, snoozed, postponed or parked
local each = ARGV.each -- per message: id, token, record, level, delay, expires, why, hold, awaits
local width = 9
-- use: clock, first_answer, history, held_messages
if count == 0 then return answer end

redis.call('HLEN', payload)
local soonest, records, expiries, about, hold_of = math.huge, {}, {}, {}, {}
local never, since, missing = 253402300799000, {}, {} -- never: the end of the year 9999
local not_begun = {}
local due_times = {high = {}, normal = {}, low = {}}
for _, i in ipairs(mine) do
  local due, awaits = now + (tonumber(ARGV[i + 4]) or never - now), ARGV[i + 8]
  if awaits ~= '' then
    local before = #missing
    not_begun[ARGV[i]] = string.byte(awaits) == 1
    redis.call('ZCARD', waiting)
    redis.call('ZCARD', awaited)
    for name in string.gmatch(awaits, '[^\n]+') do
      local member = ARGV[i] .. '\t' .. name
      if redis.call('ZLEXCOUNT', signals, '[' .. member .. '\t', '(' .. member .. '\n') == 0 then
        missing[#missing + 1], missing[#missing + 2] = '0', member
      end
    end
    if #missing == before then
      due = now
    else
      since[#since + 1], since[#since + 2] = now, ARGV[i]
    end
  end
  local level = due_times[ARGV[i + 3]]
  level[#level + 1], level[#level + 2] = due, ARGV[i]
  records[#records + 1] = ARGV[i]
  records[#records + 1] = ARGV[i + 2]
  soonest = math.min(soonest, due)
  about[#about + 1] = ARGV[i + 4] .. ' ' .. ARGV[i + 6]
  hold_of[ARGV[i]] = tonumber(ARGV[i + 7])
  if ARGV[i + 5] ~= '' then
    expiries[#expiries + 1] = ARGV[i + 5]
    expiries[#expiries + 1] = ARGV[i]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
local leaving, started = held, true
-- use: earlier, freed_keys

local holds, hold_ttl, out = {}, math.max(600000, redis.call('PTTL', buckets)), {}
if #freed > 0 then
  local last_token, clock_ahead, declared =
    unpack(redis.call('HMGET', meta, 'token', 'clock_ahead', 'limits'))
  -- use: line_clock
  local key_most, overtake = string.match(declared or '', '^%S+ %S+ %S+ (%S+) %S+ %S+ (%d)$')
  redis.call('ZCARD', buckets)
  for n, member in ipairs(freed) do
    local key, hold = string.match(places[n], '^[^\t]*'), hold_of[with_key[n]]
    local set = string.match(redis.call('HGET', limits, key) or '', '^%S+')
    local strict = overtake ~= '1' and (tonumber(set) or tonumber(key_most)) == 1
    if not strict or not_begun[with_key[n]] then out[#out + 1] = member end
    if hold and key ~= '' then
      holds[#holds + 1], holds[#holds + 2] = at + hold, key .. '\t'
      hold_ttl = math.max(hold_ttl, hold)
    end
  end
  freed = out
end

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HSET', payload, unpack(records))
if #missing > 0 then
  redis.call('ZADD', waiting, unpack(since))
  for first = 1, #missing, 4000 do
    redis.call('ZADD', awaited, unpack(missing, first, math.min(first + 3999, #missing)))
  end
end
-- use: add_delayed, free_keys
if #holds > 0 then
  redis.call('ZADD', buckets, 'GT', unpack(holds)) -- a longer one stays
  redis.call('PEXPIRE', buckets, math.min(1e13, hold_ttl)) -- see dispatch_in_turn
end
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end

note(what, worker, held, about)
-- use: receipt
return answer
