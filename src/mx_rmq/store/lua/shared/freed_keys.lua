-- freed_keys: the messages among `leaving` that have keys, with their places in line; and which of
-- these keys can be checked again: those that are blocked until a place is free, also '', the whole
-- topic. Their time in `blocked` is a full minute: see dispatch_in_turn. If the messages had not
-- `started`, all of them: a key may be blocked only because one of these costs more than the next.
-- One cheap read if neither keys nor limits nor signals are in use.
-- needs: leaving, started, keyed, blocked, running, doorbell, signals
-- defines: with_key, places, freed, waking, to_ring, any_signals

local with_key, to_ring, any_signals = {}, false, false
local places, freed, waking = with_key, with_key, with_key -- one empty table, if there are none
if #leaving > 0 and redis.call('EXISTS', keyed, blocked, signals) > 0 then
  any_signals = redis.call('ZCARD', signals) > 0
  places, freed, waking = {}, {}, {}
  local found, spot = redis.call('HMGET', keyed, unpack(leaving)), 0
  for n = 1, #leaving do
    local place, id = found[n], leaving[n]
    if place then
      spot = spot + 1
      with_key[spot], places[spot], freed[spot] = id, place, place .. id
    end
  end
  if redis.call('ZCARD', blocked) > 0 then
    local keys = {''}
    for n = 1, #places do keys[n + 1] = string.match(places[n], '^[^\t]*') end
    for n, time in ipairs(redis.call('ZMSCORE', blocked, unpack(keys))) do
      if time and (not started or time % 60000 == 0) then
        waking[#waking + 1], waking[#waking + 2] = '0', keys[n]
      end
    end
  end
  to_ring = #waking > 0 and redis.call('LLEN', doorbell) == 0
  redis.call('ZCARD', running)
end
