-- produce_delay_message: (new) -> delayed
-- Stores new messages that wait for their due time: the server's now + delay_ms, or at_ms. Works as
-- produce_normal_message. Rings the scheduler only if one of them is due before all that wait.
-- Returns  same as produce_normal_message
-- Cost     O(log D) per message, D delayed
-- keys: payload | pending* | delay_tasks* | cancelled expiry | dlq_payload error_parse_payload
-- keys: lines keyed | doorbell_delay | recent receipt totals history

local each, width = ARGV.each, 5 -- per message: id, how, record, delay_ms, at_ms
-- use: clock, first_answer, history, new_messages

local soonest, due_times, with_place = math.huge, {high = {}, normal = {}, low = {}}, {}
for _, i in ipairs(fresh) do
  local due = tonumber(ARGV[i + 4]) or now + tonumber(ARGV[i + 3])
  local n = (i - each) / width + 1
  local key, kind = key_at[n], kind_at[n] or usual_kind
  local level = due_times[kind.priority]
  level[#level + 1], level[#level + 2] = due, ARGV[i]
  soonest = math.min(soonest, due)
  if key then
    with_place[#with_place + 1], with_place[#with_place + 2] = ARGV[i], key .. kind.place
  end
end

if #with_place > 0 then redis.call('HLEN', keyed) end
-- use: earlier, admission
if full or #fresh == 0 then
  -- use: receipt
  return answer
end

-- use: store_new, add_delayed
if #with_place > 0 then redis.call('HSET', keyed, unpack(with_place)) end

note('delayed', '', stored_ids)
-- use: receipt
return answer
