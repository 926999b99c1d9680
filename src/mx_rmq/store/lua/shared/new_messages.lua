-- new_messages: which of these messages are new. `fresh` are their places in ARGV, `answer` has one
-- letter per message: see produce_normal_message. `kind_at` and `key_at` go by the number of the
-- message in the call; nil: the usual kind, neither key nor cost.
-- needs: each, width, recent, dlq_payload, error_parse_payload, payload, now, delay_tasks_high,
-- needs: delay_tasks, delay_tasks_low
-- defines: dedup_ms, answer, fresh, marks, seen, ids, generated, taken, freed_marks, usual_kind,
-- defines: kinds, kind_at, key_at, any_ttl, longest, any_own, any_dead, any_quarantined, remembered,
-- defines: taken_until, surprise, stale, recent_ttl

local dedup_ms = tonumber(ARGV.dedup_ms) -- how long a custom id stays taken, 0: not at all
local answer, fresh, marks, seen, ids, generated, taken = {}, {}, {}, {}, {}, {}, {}
local freed_marks = {}
local usual_kind = {maker = 0, priority = 'normal', window = 0, place = '\t2 1 '}
local kinds, kind_at, key_at, any_ttl, longest = {[''] = usual_kind}, {}, {}, false, 0
local any_own, any_dead, any_quarantined = false, false, false
for i = each, #ARGV, width do
  local id, how = ARGV[i], ARGV[i + 1]
  local kind = kinds[how]
  if not kind then
    local tab = string.find(how, '\t', 1, true)
    local terms = tab and string.sub(how, 1, tab - 1) or how -- the same for many messages
    kind = kinds[terms]
    if not kind then
      local own, maker, priority, ttl, window, asked, cost =
        string.match(terms, '^([01]) (%d+) (%l+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
      local number = ({high = 1, normal = 2, low = 3})[priority]
      window, maker = tonumber(window) or dedup_ms, tonumber(maker)
      if maker > 0 then window = math.max(window, 600000) end
      kind = {
        own = own == '1', maker = maker, priority = priority, ttl = tonumber(ttl),
        window = own == '1' and window or 0, asks = tonumber(asked),
        place = '\t' .. number .. ' ' .. (cost == '' and '1' or cost) .. ' ',
      }
      kinds[terms], longest = kind, math.max(longest, kind.window)
      any_ttl = any_ttl or kind.ttl
    end
    if tab then key_at[#ids + 1] = string.sub(how, tab + 1) end
  end
  if kind.own then any_own = true else generated[#generated + 1] = id end
  ids[#ids + 1] = id
  if kind ~= usual_kind then kind_at[#ids] = kind end
end
local remembered, taken_until = redis.call('ZCARD', recent) > 0, {}
if remembered then taken_until = redis.call('ZMSCORE', recent, unpack(ids)) end
if any_own then
  any_dead = redis.call('HLEN', dlq_payload) > 0
  any_quarantined = redis.call('HLEN', error_parse_payload) > 0
end
-- A generated id exists already only after an accident, so 64 are looked up in one call, which
-- moves no records. After the first surprise each is looked up by itself, because records may be
-- big; so is a single id, and every id for a user who may not read records.
local surprise = #generated == 1
  or redis.acl_check_cmd and not redis.acl_check_cmd('HMGET', payload, '')
for first = 1, #generated, 64 do
  if surprise then break end
  local upto = math.min(first + 63, #generated)
  local found = redis.call('HMGET', payload, unpack(generated, first, upto))
  for n = 1, #found do surprise = surprise or found[n] end
end
for n = 1, #ids do
  local i, id, status = each + (n - 1) * width, ids[n], '1'
  local kind = kind_at[n] or usual_kind
  local own, maker, asks = kind.own, kind.maker, kind.asks
  local made, refused, freed
  if maker > 0 then
    local kept = redis.call('GET', KEYS[maker]) or ''
    made = tonumber(string.match(kept, '^%d+'))
    refused = tonumber(string.match(kept, '^%d+ full (%d+)$')) or 0
    local free_until = remembered and redis.call('ZMSCORE', recent, '!' .. id)[1]
    freed = free_until and tonumber(free_until) > now
  end
  if seen[id] or (own or surprise) and redis.call('HEXISTS', payload, id) == 1 then
    status = 'l'
    if asks and redis.call('HEXISTS', KEYS[asks], id) == 1 then status = 'p' end
    for _, key in ipairs(asks and {delay_tasks_high, delay_tasks, delay_tasks_low} or {}) do
      if redis.call('ZMSCORE', key, id)[1] then status = 'w' end
    end
  elseif own and any_dead and redis.call('HEXISTS', dlq_payload, id) == 1 then
    status = 'd'
  elseif own and any_quarantined and redis.call('HEXISTS', error_parse_payload, id) == 1 then
    status = 'q'
  elseif taken_until[n] and tonumber(taken_until[n]) > now and not freed then
    status = 'f'
  elseif made and not freed and made - refused >= tonumber(string.match(id, '%-(%d+)')) then
    status = 'f'
  else
    seen[id] = true
    fresh[#fresh + 1] = i
    if freed then freed_marks[#freed_marks + 1] = '!' .. id end
    local window = kind.window
    if window > 0 then
      taken[window] = taken[window] or string.format('%.0f', now + window)
      marks[#marks + 1] = taken[window]
      marks[#marks + 1] = id
    end
  end
  answer[n] = status
end
local stale, recent_ttl = 0, 0
if remembered then -- counted, not listed: a producer may not see other ids
  stale = math.min(redis.call('ZCOUNT', recent, '-inf', now), 2 * #fresh + 10)
end
if #marks > 0 then recent_ttl = redis.call('PTTL', recent) end
answer = table.concat(answer)
