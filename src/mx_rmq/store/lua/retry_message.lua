-- retry_message: processing -> delayed
-- Delays messages by delay_ms, each with a new record from the caller. Failed messages are retried;
-- those that their handler wants later are snoozed; those that only a newer release can read are
-- postponed.
-- Returns  same as complete_message
-- Cost     O(log P + log D) per message, P in processing, D delayed
-- keys: payload | delay_tasks* | expiry | processing expire_monitor | doorbell_delay
-- keys: receipt totals history

local what = ARGV.what -- what the history calls it: retried, snoozed or postponed
local each, width = ARGV.each, 7 -- per message: id, token, record, level, delay_ms, expires_ms, why
-- use: clock, first_answer, history, held_messages
if count == 0 then return answer end

redis.call('HLEN', payload)
local soonest, records, expiries, about = math.huge, {}, {}, {}
local due_times = {high = {}, normal = {}, low = {}}
for _, i in ipairs(mine) do
  local due = now + tonumber(ARGV[i + 4])
  local level = due_times[ARGV[i + 3]]
  level[#level + 1], level[#level + 2] = due, ARGV[i]
  records[#records + 1] = ARGV[i]
  records[#records + 1] = ARGV[i + 2]
  soonest = math.min(soonest, due)
  about[#about + 1] = ARGV[i + 4] .. ' ' .. ARGV[i + 6]
  if ARGV[i + 5] ~= '' then
    expiries[#expiries + 1] = ARGV[i + 5]
    expiries[#expiries + 1] = ARGV[i]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
-- use: earlier

redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HSET', payload, unpack(records))
-- use: add_delayed
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end

note(what, worker, held, about)
-- use: receipt
return answer
