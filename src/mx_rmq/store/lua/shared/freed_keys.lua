-- freed_keys: the messages among `leaving` that have keys, with their places in line. If such a key
-- is blocked, it can be looked at again; so can the whole topic, ''. One cheap read if no keys and
-- no limits are in use.
-- needs: leaving, keyed, blocked, running, doorbell
-- defines: with_key, places, freed, waking, to_ring

local with_key, places, freed, waking, to_ring = {}, {}, {}, {}, false
if #leaving > 0 and redis.call('EXISTS', keyed, blocked) > 0 then
  local keys = {''}
  for n, place in ipairs(redis.call('HMGET', keyed, unpack(leaving))) do
    if place then
      local key = string.match(place, '^[^\t]*')
      with_key[#with_key + 1], places[#places + 1] = leaving[n], place
      freed[#freed + 1] = key .. '\t' .. leaving[n]
      keys[#keys + 1] = key
    end
  end
  for n, time in ipairs(redis.call('ZMSCORE', blocked, unpack(keys))) do
    if time then waking[#waking + 1], waking[#waking + 2] = 0, keys[n] end
  end
  to_ring = #waking > 0 and redis.call('LLEN', doorbell) == 0
  redis.call('ZCARD', running)
end
