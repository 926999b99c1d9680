-- remove_subscription: a topic no longer has a subscription
-- fan_out gives it no more copies. What it has stays. The removal is noted, so that running workers
-- do not bring it back; a worker that starts with it does. Only the last 50 are noted.
-- Returns  1 removed now, 2 by an earlier copy of this call, 0 it was not there
-- Cost     O(S), S subscriptions
-- keys: meta | receipt totals history

local name = ARGV.name -- the subscription
local by   = ARGV.by   -- who asks for it
-- use: clock, first_answer, history

local answer, there, removed = '0', {}, {}
for one, since in string.gmatch(redis.call('HGET', meta, 'subscriptions') or '', '(%S+) (%d+)') do
  if one == name then
    answer = '1'
  elseif string.byte(one) ~= 45 then -- a dash: it was removed
    there[#there + 1] = one .. ' ' .. since
  else
    removed[#removed + 1] = one .. ' ' .. since
  end
end
if answer == '1' then there[#there + 1] = string.format('-%s %.0f', name, now) end
for n = 1, math.min(#removed, 49) do there[#there + 1] = removed[n] end

redis.call('HDEL', meta, 'subscriptions') -- works at maxmemory
if #there > 0 then redis.call('HSET', meta, 'subscriptions', table.concat(there, ' ')) end

note('unsubscribed', by, {answer == '1' and '' or nil}, {name})
-- use: receipt
return answer
