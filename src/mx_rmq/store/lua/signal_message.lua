-- signal_message: waiting -> delayed, due now, once nothing is missing
-- Keeps signals for messages that exist, in any state, until they end. Of two signals with one name
-- the first counts. A message whose last missing signal has arrived is due; so is one that must
-- `wake` for another reason. A topic with subscriptions keeps none: fan_out would drop them.
-- Returns  one letter per signal: 1 kept, 2 kept by an earlier copy of this call, s there was one
--          already, 0 no such message, f the message has too many, c the topic has subscriptions
-- Cost     O(log N) per signal, N kept
-- keys: payload | delay_tasks* | waiting awaited signals | dlq_payload error_parse_payload
-- keys: doorbell_delay meta | receipt totals history

local most = tonumber(ARGV.most)  -- signals kept per message
local by   = ARGV.by              -- who sends them
local each, width = ARGV.each, 4  -- per signal: id, name, value, wake
-- use: clock, first_answer, history

local answer, ids, names, arriving, kept, came, wakes, woken = {}, {}, {}, {}, {}, {}, {}, {}
local any_awaited = redis.call('ZCARD', awaited) > 0
local subscriptions = redis.call('HGET', meta, 'subscriptions') or ''
local is_copied = string.find(subscriptions, '^[^-]')
for i = each, #ARGV, width do
  local id, name = ARGV[i], ARGV[i + 1]
  local member = id .. '\t' .. name
  local held = redis.call('ZLEXCOUNT', signals, '[' .. id .. '\t', '(' .. id .. '\n')
  local code = '1'
  if is_copied then
    code = 'c'
  elseif redis.call('HEXISTS', payload, id) == 0 and redis.call('HEXISTS', dlq_payload, id) == 0
    and redis.call('HEXISTS', error_parse_payload, id) == 0 then
    code = '0'
  elseif arriving[member]
    or redis.call('ZLEXCOUNT', signals, '[' .. member .. '\t', '(' .. member .. '\n') > 0 then
    code = 's'
  elseif held + (came[id] or 0) >= most then
    code = 'f'
  else
    arriving[member], came[id] = true, (came[id] or 0) + 1
    kept[#kept + 1], kept[#kept + 2] = '0', member .. '\t' .. ARGV[i + 2]
    ids[#ids + 1], names[#names + 1] = id, name
  end
  if code ~= '0' and code ~= 'c' and ARGV[i + 3] == '1' then wakes[#wakes + 1] = id end
  answer[#answer + 1] = code
end
answer = table.concat(answer)

-- Which of them are due now: `missing` counts what each still waits for.
local missing, no_longer, due_times = {}, {}, {high = {}, normal = {}, low = {}}
for n, id in ipairs(ids) do
  local member = id .. '\t' .. names[n]
  if any_awaited and redis.call('ZMSCORE', awaited, member)[1] then
    missing[id] = (missing[id]
      or redis.call('ZLEXCOUNT', awaited, '[' .. id .. '\t', '(' .. id .. '\n')) - 1
    no_longer[#no_longer + 1] = member
    if missing[id] == 0 then wakes[#wakes + 1] = id end
  end
end
local waits_end = {}
local levels = {{'high', delay_tasks_high}, {'normal', delay_tasks}, {'low', delay_tasks_low}}
for _, id in ipairs(wakes) do
  if not woken[id] and redis.call('ZSCORE', waiting, id) then
    woken[id] = true
    for _, level in ipairs(levels) do
      if redis.call('ZSCORE', level[2], id) then
        local times = due_times[level[1]]
        times[#times + 1], times[#times + 2] = now, id
        waits_end[#waits_end + 1] = id
      end
    end
  end
end
local soonest = now
-- use: earlier

redis.call('ZREMRANGEBYRANK', awaited, 1, 0) -- removes nothing, but works at maxmemory
if #no_longer > 0 then redis.call('ZREM', awaited, unpack(no_longer)) end
if #kept > 0 then redis.call('ZADD', signals, unpack(kept)) end
-- use: end_waits
if #waits_end > 0 then
  -- use: add_delayed
end

note('signalled', by, ids, names)
-- use: receipt
return answer
