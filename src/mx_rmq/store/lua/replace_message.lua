-- replace_message: any -> pending | delayed, or processing -> processing
-- Stores one message under a custom id, even if the id is taken: the newest record wins, and its
-- delay and time to live start now. A pending message that gets no delay keeps its place, unless
-- its level changes; one that is too deep in a list to be found keeps it in any case. An archived
-- message is revived.
-- A message in processing stays with its worker. Its lease gets a mark, ' LEVEL DUE EXPIRES', that
-- says where the new record waits once the worker is done. The scripts that settle a message answer
-- r if they find the mark, and the worker calls release_replaced. If the worker dies, the monitor
-- takes over the mark with the lease, and does the same. Its new place in line is kept as '!id'.
-- A topic with subscriptions refuses it: copies of the message before may be anywhere.
-- Returns  1 stored as a new message, 2 by an earlier copy of this call, r replaced the one before.
--          Or 'full': the cap refuses one more waiting message. Or s: it has subscriptions.
-- Cost     O(log N), N delayed, archived or in processing, and O(walk) if it is pending
-- keys: payload | pending* | delay_tasks* | lines ring blocked keyed running
-- keys: cancelled expiry | processing | waiting awaited signals
-- keys: dlq dlq_payload error_parse_queue error_parse_payload archive_bytes
-- keys: doorbell doorbell_delay meta | recent receipt totals history

local each, width = ARGV.each, 5 -- per message: id, how, record, delay_ms, at_ms
-- use: clock, first_answer, history, new_messages

local id, its_kind = ids[1], kind_at[1] or usual_kind
local priority, ttl, window = its_kind.priority, its_kind.ttl, its_kind.window
local due = tonumber(ARGV[each + 4]) or now + tonumber(ARGV[each + 3])
local lease = redis.call('HGET', processing, id)
local in_hand = answer == 'l' and lease
local waits = answer == 'l' and not lease
-- use: waiting_place
local key, joining, wake = key_at[1], {}, true
local own_place, has_line = key and key .. its_kind.place, key and key ~= ''
local leaving, started = {waits and id or nil}, false
local same_line = place and string.gsub(place, '^([^\t]*\t%d)%d*', '%1') == own_place
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
local later, stays = due > now and not in_hand, false
if waits and not later and not delayed then
  stays = in_line and same_line
    or not in_line and not own_place and not place and (list == behind or not list and deep)
end
if has_line and not in_hand and not later and not stays then
  joining = {id, key, its_kind.place}
  if only_one == key then only_one = false end -- it comes back
end
-- use: freed_keys, line_ends
local ended = {id} -- what comes from now on is for the new one
any_signals = redis.call('ZCARD', signals) > 0
redis.call('ZCARD', ring)
redis.call('LLEN', behind)
local due_times, soonest = {high = {}, normal = {}, low = {}}, due
if later then due_times[priority] = {due, id} end
local rings = redis.call('LLEN', doorbell)
-- use: earlier

local kind, archive, archive_payload = 'dead', dlq, dlq_payload
if answer == 'q' then
  kind, archive, archive_payload = 'quarantined', error_parse_queue, error_parse_payload
end
local archived = answer == 'd' or answer == 'q'
local victims, weights = {id}, {redis.call('HSTRLEN', archive_payload, id)}
local arriving, weight, recount_ms, overflow = 0, 0, math.huge, false
-- use: archive_size

local new = answer == '1' or answer == 'f'
if answer ~= '1' then -- new_messages left it out
  if window > 0 then marks = {string.format('%.0f', now + window), id} end
  local still = tonumber(taken_until[1] or 0) > now
  if window == 0 and still then freed_marks[1] = id end
  recent_ttl = redis.call('PTTL', recent)
  if new or archived then fresh = {each} end
end
answer = new and '1' or 'r'
-- use: admission
local subscriptions = redis.call('HGET', meta, 'subscriptions') or ''
if string.find(subscriptions, '^[^-]') then answer, full = 's', true end
fresh = {each}
if waits and ttl then expiries = {now + ttl, id} end
if #expiries > 0 then expires = false end -- it is replaced, not removed

if archived and not full then
  -- use: drop_victims
end
if not full then
  -- use: store_new, forget_signals
  if not stays then
    -- use: free_keys, leave_place, forget_keys
    if own_place and not in_hand then redis.call('HSET', keyed, id, own_place) end
  elseif expires then
    redis.call('ZREM', expiry, id)
  end
  if in_hand then
    redis.call('HSET', processing, id, string.format('%s %s %s %s', string.match(lease, '^[^ ]*'),
      priority, due > now and string.format('%.0f', due) or '',
      ttl and string.format('%.0f', now + ttl) or ''))
    redis.call('HDEL', keyed, '!' .. id)
    if own_place then redis.call('HSET', keyed, '!' .. id, own_place) end
  elseif later then
    -- use: add_delayed
  elseif not stays then
    -- use: join_lines
    if not has_line then redis.call('LPUSH', behind, id) end
    if rings == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end
  end
  note(answer == 'r' and 'replaced' or later and 'delayed' or 'produced', '', {id})
end

-- use: receipt
return answer
