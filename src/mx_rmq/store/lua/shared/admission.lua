-- admission: when the new messages expire, and whether the cap lets them in.
-- needs: fresh, each, width, kind_at, any_ttl, now, expiry, pending_high, pending, pending_low,
-- needs: delay_tasks_high,
-- needs: delay_tasks, delay_tasks_low, cancelled, lines, answer
-- defines: max_pending, expiries, full

local max_pending = tonumber(ARGV.max_pending) -- cap on waiting messages, 0: none
local expiries = {}
for n = 1, any_ttl and #fresh or 0 do
  local kind = kind_at[(fresh[n] - each) / width + 1]
  local ttl = kind and kind.ttl
  if ttl then
    expiries[#expiries + 1] = now + ttl
    expiries[#expiries + 1] = ARGV[fresh[n]]
  end
end
if #expiries > 0 then redis.call('ZCARD', expiry) end
local full = false
if max_pending > 0 and #fresh > 0 then
  local waiting = #fresh
  for _, key in ipairs({pending_high, pending, pending_low}) do
    local length = redis.pcall('LLEN', key)
    waiting = waiting + (type(length) == 'number' and length or 0)
  end
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low, lines}) do
    local length = redis.pcall('ZCARD', key)
    waiting = waiting + (type(length) == 'number' and length or 0)
  end
  local passed = redis.pcall('SCARD', cancelled)
  full = waiting - (type(passed) == 'number' and passed or 0) > max_pending
  if full then answer = string.format('full %d', #answer) end
end
