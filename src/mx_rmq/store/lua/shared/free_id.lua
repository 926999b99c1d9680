-- free_id: let the id be produced again.
-- needs: marked, taken_until, now, recent, id, recent_ttl, made

if marked then
  local free_ms = math.max(1800000, (tonumber(taken_until) or 0) - now)
  redis.call('ZADD', recent, string.format('%.0f', now + free_ms), '!' .. id)
  redis.call('PEXPIRE', recent, math.max(recent_ttl, free_ms))
elseif taken_until and made == '0' then
  redis.call('ZREM', recent, id)
end
