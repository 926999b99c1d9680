-- complete_with_result: processing -> completed
-- Completes messages and keeps their results, in one step: as complete_message, plus an archive of
-- results, bounded as the dead letters are. A result that an earlier message with the same id left
-- is replaced. Results are also published, so that those who wait need not read: for each message
-- 'completed', the lengths of id and result, a newline, id and result. A long result is not
-- published but read; its length is then -1.
-- Returns  same as complete_message
-- Cost     O(log P + log A) per message, P in processing, A kept, and per result dropped
-- keys: payload | processing expire_monitor | archive archive_payload archive_bytes | meta
-- keys: keyed running blocked doorbell signals | receipt totals history

local budget    = tonumber(ARGV.budget)    -- bytes that the results may take, 0: no limit
local hexpire_s = tonumber(ARGV.hexpire_s) -- TTL of a result's field (s), 0: none
local inline    = tonumber(ARGV.inline)    -- the longest result to publish, in bytes
local channel   = ARGV.channel             -- where ends of messages are published
local each, width = ARGV.each, 3 -- per message: id, token, kept
-- use: clock, first_answer, history, held_messages
if count == 0 then return answer end

redis.call('HLEN', payload)
local leaving, started, ended = held, true, held
-- use: freed_keys
local kind, recount_ms, arriving, weight = 'completed', math.huge, count, 0
local old, overwritten = redis.call('ZMSCORE', archive, unpack(held)), {}
local results, times, told, part, size = {}, {}, {}, {}, 0
for n, id in ipairs(held) do
  local kept = ARGV[mine[n] + 2]
  weight = weight + #kept
  if old[n] then
    overwritten[#overwritten + 1] = id
    overwritten[id] = redis.call('HSTRLEN', archive_payload, id)
  end
  results[2 * n - 1], results[2 * n] = id, kept
  times[2 * n - 1], times[2 * n] = now, id
  local short = #kept <= inline
  part[#part + 1] = string.format('completed %d %d\n', #id, short and #kept or -1)
  part[#part + 1] = id
  part[#part + 1] = short and kept or ''
  size = size + #id + #part[#part]
  if size > 65536 or n == count then
    told[#told + 1], part, size = table.concat(part), {}, 0
  end
end

-- use: archive_size, victims
local noted_ttl = redis.call('HGET', meta, 'result_ttl')
for _, one in ipairs(victims) do overwritten[one] = nil end
for _, id in ipairs(overwritten) do
  if overwritten[id] then victims[#victims + 1], weights[#victims + 1] = id, overwritten[id] end
end

-- use: drop_victims
redis.call('ZREM', expire_monitor, unpack(held))
redis.call('HDEL', processing, unpack(held))
redis.call('HDEL', payload, unpack(held))
-- use: free_keys, forget_keys, forget_signals
redis.call('HSET', archive_payload, unpack(results))
redis.call('ZADD', archive, unpack(times))
if hexpire_s > 0 then
  redis.call('HEXPIRE', archive_payload, hexpire_s, 'FIELDS', count, unpack(held))
end
if tonumber(noted_ttl) ~= ttl_ms then redis.call('HSET', meta, 'result_ttl', ttl_ms) end

note('completed', worker, held)
redis.pcall('HINCRBY', totals, 'kept', count)
-- use: receipt
for _, some in ipairs(told) do redis.pcall('PUBLISH', channel, some) end
return answer
