-- line_ends: where the messages in `joining` (id, place) join their lines: behind the others, unless
-- they keep a number from before. A key that has no turn gets one, a round from now. A blocked key
-- stays blocked, or is looked at again if `wake` is set. `ready`: whether one of them may start.
-- needs: joining, wake, now, keyed, lines, ring, blocked
-- defines: members, numbered, entering, roused, ready

local members, numbered, entering, roused, ready = {}, {}, {}, {}, false
if #joining > 0 then
  local seq = math.max(tonumber(redis.call('HGET', keyed, '!')) or 0, now * 1000)
  local turn = (tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2]) or 0) + 1
  local keys = {}
  for n, one in ipairs(joining) do
    local key, level, number, cost = string.match(one[2], '^([^\t]*)\t(%d)(%d*) (%d+) $')
    local place = one[2]
    if number == '' then
      seq = seq + 1
      place = string.format('%s\t%s%016.0f %s ', key, level, seq, cost)
      numbered[#numbered + 1], numbered[#numbered + 2] = one[1], place
    end
    keys[n], members[#members + 1], members[#members + 2] = key, 0, place .. one[1]
  end
  if #numbered > 0 then
    numbered[#numbered + 1], numbered[#numbered + 2] = '!', string.format('%.0f', seq)
  end
  redis.call('ZCARD', lines)
  local turns = redis.call('ZMSCORE', ring, unpack(keys))
  for n, time in ipairs(redis.call('ZMSCORE', blocked, unpack(keys))) do
    ready = ready or not time or wake
    if time and wake then roused[#roused + 1], roused[#roused + 2] = 0, keys[n] end
    if not (time or turns[n]) then
      entering[#entering + 1], entering[#entering + 2] = turn, keys[n]
    end
  end
end
