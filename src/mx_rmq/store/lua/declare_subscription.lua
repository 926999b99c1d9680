-- declare_subscription: a topic has a subscription
-- From now on fan_out gives it a copy of each message, also of those that still wait in the topic.
-- Workers declare their subscriptions when they start, and `again` from time to time, in case the
-- server lost data. Then one that was removed meanwhile stays removed.
-- Returns  1 declared now, 2 by an earlier copy of this call, 0 it was there, - it was removed
-- Cost     O(S), S subscriptions
-- keys: meta | receipt totals history

local name  = ARGV.name  -- the subscription
local by    = ARGV.by    -- who asks for it
local again = ARGV.again -- '1': not if it was removed
-- use: clock, first_answer, history

local answer, there, removed = '1', {}, {}
for one, since in string.gmatch(redis.call('HGET', meta, 'subscriptions') or '', '(%S+) (%d+)') do
  local is_removed = string.byte(one) == 45 -- a dash
  if one == name then answer = '0' end
  if one == '-' .. name and again == '1' then answer = '-' end
  if not is_removed then
    there[#there + 1] = one .. ' ' .. since
  elseif one ~= '-' .. name or again == '1' then
    removed[#removed + 1] = one .. ' ' .. since
  end
end
if answer == '1' then there[#there + 1] = string.format('%s %.0f', name, now) end
for _, one in ipairs(removed) do there[#there + 1] = one end -- last: see dispatch_message

redis.call('HDEL', meta, 'subscriptions') -- works at maxmemory
redis.call('HSET', meta, 'subscriptions', table.concat(there, ' '))

note('subscribed', by, {answer == '1' and '' or nil}, {name})
-- use: receipt
return answer
