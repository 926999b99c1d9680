-- repair_waits: repair
-- Fixes what the audit found wrong about messages that wait for signals, unless it is right by now.
-- A message that waits is delayed, and awaits a signal; signals belong to a message that exists.
-- Returns  for each message the sum of what was wrong: 1 it waits, but is not delayed: it no longer
--          waits; 2 it awaits signals, but does not wait: it waits if it is delayed, else it awaits
--          none; 4 it awaits signals that have arrived: no longer; 8 it waits, but awaits none: it
--          is due; 16 it has signals, but is gone: they are dropped
-- Cost     O(log N) per message and per signal that it awaits, N waiting
-- keys: payload | delay_tasks* | waiting awaited signals | dlq_payload error_parse_payload
-- keys: doorbell_delay

local dry  = ARGV.dry  -- '1': only say what is wrong
local each = ARGV.each -- per message: id
-- use: clock

local answer, again, no_longer, ended, waits_end = {}, {}, {}, {}, {}
local due_times = {high = {}, normal = {}, low = {}}
local levels = {{'high', delay_tasks_high}, {'normal', delay_tasks}, {'low', delay_tasks_low}}
redis.call('ZCARD', waiting)
for i = each, #ARGV do
  local id, code, level = ARGV[i], 0, nil
  local from, to = '[' .. id .. '\t', '(' .. id .. '\n'
  local live = redis.call('HEXISTS', payload, id) == 1
  local there = live or redis.call('HEXISTS', dlq_payload, id) == 1
    or redis.call('HEXISTS', error_parse_payload, id) == 1
  for _, one in ipairs(levels) do
    if redis.call('ZSCORE', one[2], id) and live then level = one[1] end
  end
  local waits = redis.call('ZSCORE', waiting, id)
  local members, came = redis.call('ZRANGEBYLEX', awaited, from, to), {}
  for _, member in ipairs(members) do
    if redis.call('ZLEXCOUNT', signals, '[' .. member .. '\t', '(' .. member .. '\n') > 0 then
      came[#came + 1] = member
    end
  end
  if waits and not level then code = code + 1 end
  if #members > 0 and not waits then code = code + 2 end
  if #came > 0 and level then code = code + 4 end
  if level and #members == #came and (waits or #members > 0) then
    code = code + 8
    due_times[level][#due_times[level] + 1], due_times[level][#due_times[level] + 2] = now, id
  end
  if (waits or #members > 0) and (not level or #members == #came) then
    waits_end[#waits_end + 1] = id
  elseif #members > 0 then
    if not waits then again[#again + 1], again[#again + 2] = now, id end
    for _, member in ipairs(came) do no_longer[#no_longer + 1] = member end
  end
  if redis.call('ZLEXCOUNT', signals, from, to) > 0 and not there then
    code, ended[#ended + 1] = code + 16, id
  end
  answer[#answer + 1] = code
end
local soonest, any_signals = now, #ended > 0
-- use: earlier
if dry == '1' then return answer end

redis.call('ZREMRANGEBYRANK', waiting, 1, 0) -- removes nothing, but works at maxmemory
for _, member in ipairs(no_longer) do redis.call('ZREM', awaited, member) end
if #again > 0 then redis.call('ZADD', waiting, unpack(again)) end
-- use: end_waits, forget_signals
if #due_times.high + #due_times.normal + #due_times.low > 0 then
  -- use: add_delayed
end
return answer
