-- line_ends: where messages join their lines: at the end, unless they have a number from before.
-- `joining` has for each its id, its key and the rest of its place. A key without a turn gets one,
-- a round from now. A blocked key stays blocked, or is looked at again if `wake` is set. `ready`:
-- whether one of them may start.
-- needs: joining, wake, now, keyed, lines, ring, blocked
-- defines: members, numbered, entering, roused, ready

local members, ready = {}, #joining > 0
local numbered, entering, roused = members, members, members -- one empty table, if none joins
if ready then
  numbered, entering, roused = {}, {}, {}
  local seq = math.max(tonumber(redis.call('HGET', keyed, '!')) or 0, now * 1000)
  local turn = (tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0) + 1
  local level_of, cost_of, seen_keys, tens = {}, {}, {}, nil
  local digits = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
  local last, last_numbered, last_entering = 0, 0, 0
  turn = string.format('%.17g', turn)
  for n = 1, #joining, 3 do
    local id, key, rest = joining[n], joining[n + 1], joining[n + 2]
    local level, cost, place = level_of[rest], cost_of[rest], nil
    if not level then -- most have the same rest
      local number
      level, number, cost = string.match(rest, '^(\t%d)(%d*)(.*)$')
      if number == '' then
        level_of[rest], cost_of[rest] = level, cost
      else
        place = key .. rest
      end
    end
    if not place then
      seq = seq + 1
      local digit = seq % 10
      if digit == 0 then tens = nil end -- formatting is slow
      tens = tens or string.format('%015.0f', (seq - digit) / 10)
      place = key .. level .. tens .. digits[digit] .. cost
      numbered[last_numbered + 1], numbered[last_numbered + 2] = id, place
      last_numbered = last_numbered + 2
    end
    members[last + 1], members[last + 2], last = '0', place .. id, last + 2
    if not seen_keys[key] then
      seen_keys[key] = true
      entering[last_entering + 1], entering[last_entering + 2] = turn, key
      last_entering = last_entering + 2
    end
  end
  if last_numbered > 0 then
    numbered[last_numbered + 1], numbered[last_numbered + 2] = '!', string.format('%.0f', seq)
  end
  redis.call('ZCARD', lines)
  if redis.call('ZCARD', blocked) > 0 then
    local keys, free = {}, {}
    for n = 2, last_entering, 2 do keys[n / 2] = entering[n] end
    local times = redis.call('ZMSCORE', blocked, unpack(keys))
    for n = 1, #keys do
      if not times[n] then
        free[#free + 1], free[#free + 2] = turn, keys[n]
      elseif wake then
        roused[#roused + 1], roused[#roused + 2] = '0', keys[n]
      end
    end
    entering, ready = free, wake or #free > 0
  end
end
