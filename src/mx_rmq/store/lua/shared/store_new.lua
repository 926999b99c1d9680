-- store_new: store the new records with the server's time, and remember custom ids; or return, if
-- there is nothing new or the cap refuses the whole call. A refusal leaves a receipt, too.
-- needs: fresh, ttls, now, expiry, pending_high, pending, pending_low, delay_tasks_high,
-- needs: delay_tasks, delay_tasks_low, cancelled, answer, receipt, call, payload, freed_marks,
-- needs: recent, stale, marks, recent_ttl, dedup_ms
-- defines: max_pending, expiries, full, stamp, records, stored

local max_pending = tonumber(ARGV.max_pending) -- cap on waiting messages, 0: none
local expiries = {}
for n = 1, #fresh do
  local ttl = ttls[ARGV[fresh[n] + 1]]
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
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    local length = redis.pcall('ZCARD', key)
    waiting = waiting + (type(length) == 'number' and length or 0)
  end
  local passed = redis.pcall('SCARD', cancelled)
  full = waiting - (type(passed) == 'number' and passed or 0) > max_pending
  if full then answer = string.format('full %d', #answer) end
end
if full or #fresh == 0 then
  redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
  return answer
end

local stamp, records, stored = string.format('{"created_at":%.0f,', now), {}, {}
for n = 1, #fresh do
  local i = fresh[n]
  stored[n], records[2 * n - 1] = ARGV[i], ARGV[i]
  records[2 * n] = stamp .. ARGV[i + 2]
end
redis.call('HSET', payload, unpack(records))
-- A used mark moves to the front and goes with the stale ids: a producer may not use ZREM.
for n = 1, #freed_marks do redis.call('ZADD', recent, 0, freed_marks[n]) end
stale = stale + #freed_marks
if stale > 0 then redis.call('ZREMRANGEBYRANK', recent, 0, stale - 1) end
if #marks > 0 then
  redis.call('ZADD', recent, unpack(marks))
  redis.call('PEXPIRE', recent, math.max(recent_ttl, dedup_ms, 600000))
end
if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end
