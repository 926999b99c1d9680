-- victims: the oldest archived messages beyond the age, the cap or the byte budget.
-- A message counts for what is kept of it and 200 bytes for its places in index and hash. One that
-- an arriving message overwrites goes in any case, so it makes room. `overwritten` lists their ids,
-- and has the bytes of each.
-- needs: archive, now, arriving, bytes, weight, archive_payload, budget, overwritten
-- defines: keep, ttl_ms, most, victims, weights, listed, stay, load, surplus, overflow

local keep   = tonumber(ARGV.keep)   -- archived messages to keep, 0: all
local ttl_ms = tonumber(ARGV.ttl_ms) -- age at which they are dropped, 0: never
local most = 99 + math.max(1, arriving)
local victims, weights = {}, {}
if ttl_ms > 0 then
  victims = redis.call('ZRANGEBYSCORE', archive, '-inf', now - ttl_ms, 'LIMIT', 0, most)
end
local listed = redis.call('ZCARD', archive)
local stay, load = listed + arriving - #overwritten, bytes + weight
for _, one in ipairs(overwritten) do load = load - overwritten[one] end
for _, one in ipairs(victims) do stay = overwritten[one] and stay or stay - 1 end
local surplus = math.min(stay - keep, most)
if keep > 0 and surplus > 0 then
  local oldest = redis.call('ZRANGE', archive, #victims, #victims + surplus + #overwritten - 1)
  for _, one in ipairs(oldest) do
    if surplus == 0 then break end
    victims[#victims + 1] = one
    if not overwritten[one] then stay, surplus = stay - 1, surplus - 1 end
  end
end
load = load + 200 * stay
for n, one in ipairs(victims) do
  weights[n] = redis.call('HSTRLEN', archive_payload, one)
  if not overwritten[one] then load = load - weights[n] end
end
local overflow = false
while budget > 0 and load > budget and #victims < math.min(listed, 10000) do
  for _, one in ipairs(redis.call('ZRANGE', archive, #victims, #victims + 99)) do
    if load <= budget then break end
    victims[#victims + 1], overflow = one, true
    weights[#victims] = redis.call('HSTRLEN', archive_payload, one)
    if not overwritten[one] then load = load - weights[#victims] - 200 end
  end
end
