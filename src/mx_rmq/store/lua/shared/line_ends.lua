-- line_ends: where messages (`joining`: id, place, id, …) join their lines: at the end, unless they
-- have a number from before. A key that has no turn gets one, a round from now. A blocked key
-- stays blocked, or is looked at again if `wake` is set. `ready`: whether one of them may start.
-- needs: joining, wake, now, keyed, lines, ring, blocked
-- defines: members, numbered, entering, roused, ready

local members, numbered, entering, roused, ready = {}, {}, {}, {}, false
if #joining > 0 then
  local seq = math.max(tonumber(redis.call('HGET', keyed, '!')) or 0, now * 1000)
  local turn = (tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0) + 1
  local keys, seen_keys, tens = {}, {}, nil
  local digits = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
  turn = string.format('%.17g', turn)
  for n = 1, #joining, 2 do
    local id, place = joining[n], joining[n + 1]
    local key, level, number, cost = string.match(place, '^([^\t]*)(\t%d)(%d*)(.*)')
    if number == '' then
      seq = seq + 1
      local digit = seq % 10
      if digit == 0 then tens = nil end -- formatting is slow
      tens = tens or string.format('%015.0f', (seq - digit) / 10)
      place = key .. level .. tens .. digits[digit] .. cost
      numbered[#numbered + 1], numbered[#numbered + 2] = id, place
    end
    members[n], members[n + 1] = '0', place .. id
    if not seen_keys[key] then seen_keys[key], keys[#keys + 1] = true, key end
  end
  if #numbered > 0 then
    numbered[#numbered + 1], numbered[#numbered + 2] = '!', string.format('%.0f', seq)
  end
  redis.call('ZCARD', lines)
  local turns = redis.call('ZMSCORE', ring, unpack(keys))
  local times, any_blocked = {}, redis.call('ZCARD', blocked) > 0
  if any_blocked then times = redis.call('ZMSCORE', blocked, unpack(keys)) end
  for n = 1, #keys do
    local time = times[n]
    ready = ready or not time or wake
    if time and wake then roused[#roused + 1], roused[#roused + 2] = '0', keys[n] end
    if not (time or turns[n]) then
      entering[#entering + 1], entering[#entering + 2] = turn, keys[n]
    end
  end
end
