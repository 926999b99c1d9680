-- requeue_message: dead | quarantined -> pending
-- Queues an archived message again, with a new record, if it still has the archived_ms that was
-- seen. The server stamps the time into the record, as when it is due, so that its waiting time is
-- known, and as when it was requeued, from which a default time to live counts.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 no longer there
-- Cost     O(log A), A archived
-- keys: payload | pending* | expiry | archive archive_payload archive_bytes | doorbell
-- keys: lines ring blocked keyed | receipt totals history

local priority   = ARGV.priority             -- high, normal or low
local record     = ARGV.record               -- without its first brace and these two times
local expires_ms = tonumber(ARGV.expires_ms) -- when it expires (ms), or '': never
local own_place  = ARGV.own_place            -- key, tab, level, cost: see keys.py; or ''
local why        = ARGV.why                  -- a note for the history, or ''
-- use: clock, first_answer, history, archived_message

local kept = redis.call('HEXISTS', archive_payload, id) == 1
local live = redis.call('HEXISTS', payload, id) == 1
local answer = kept and same and not live and '1' or '0'
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)
local joining, wake, in_line = {}, true, answer == '1' and string.find(own_place, '^[^\t]')
if in_line then joining = {id, string.match(own_place, '^(.-)(\t.*)$')} end
-- use: line_ends
redis.call('HLEN', keyed)
redis.call('ZCARD', expiry)
local victims = {answer == '1' and id or nil}

-- use: archive_size, drop_victims

if answer == '1' then
  redis.call('HSET', payload, id, string.format('{"due":%.0f,"requeued":%.0f,', now, now) .. record)
  if not in_line then redis.call('LPUSH', behind, id) end
  if own_place ~= '' then redis.call('HSET', keyed, id, own_place) end
  -- use: join_lines
  if expires_ms then redis.call('ZADD', expiry, expires_ms, id) end
  if rung == 0 then redis.call('RPUSH', doorbell, '1') end
end

note('requeued', by, victims, why ~= '' and {why} or nil)
-- use: receipt
return answer
