-- held_messages: which of these messages the worker still holds, by their tokens.
-- `mine` are their places in ARGV, `held` their ids. `replaced` are the ids of those that it holds
-- too, but that replace_message has given a new record since.
-- needs: each, width, processing, expire_monitor
-- defines: worker, ids, answer, seen, leases, mine, held, replaced, count, lease_end

local worker = ARGV.worker -- who holds the leases
local ids, answer, seen = {}, {}, {}
for i = each, #ARGV, width do ids[#ids + 1] = ARGV[i] end
local leases = redis.call('HMGET', processing, unpack(ids))
redis.call('ZCARD', expire_monitor)
local mine, held, replaced, count, lease_end = {}, {}, {}, 0, ':' .. worker
for n = 1, #ids do
  local id, at = ids[n], each + (n - 1) * width
  if leases[n] == ARGV[at + 1] .. lease_end and not seen[id] then
    count = count + 1
    seen[id], mine[count], held[count], answer[n] = true, at, id, '1'
  elseif leases[n] and not seen[id]
    and string.find(leases[n], ARGV[at + 1] .. lease_end .. ' ', 1, true) == 1 then
    seen[id], replaced[#replaced + 1], answer[n] = true, id, 'r'
  else
    answer[n] = '0'
  end
end
answer = table.concat(answer)
