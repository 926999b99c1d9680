-- requeue_message: dead | quarantined -> pending
-- Queues an archived message again, with the record that the operator saw or edited, if the
-- archived_ms that the operator saw is still true. The server stamps the time into the record, so
-- that its waiting time is known. A refusal leaves a receipt, as in discard_message.
--
-- Returns  1 done, 2 done by an earlier copy of this call, 0 no longer there
-- Cost     O(log A), A archived
-- keys: payload | pending_high pending pending_low | expiry | archive archive_payload archive_bytes
-- keys: doorbell | receipt totals history

local kind        = ARGV.kind                  -- which archive: dead or quarantined
local id          = ARGV.id                    -- the message
local archived_ms = tonumber(ARGV.archived_ms) -- when it was archived, as the operator saw it
local priority    = ARGV.priority              -- high, normal or low
local record      = ARGV.record                -- without its first brace and its due time
local expires_ms  = tonumber(ARGV.expires_ms)  -- when it expires (ms), or '': never
local why         = ARGV.why                   -- a note for the history, or ''
local by          = ARGV.by                    -- who asks for it
-- use: clock, first_answer, history

local archived_at = redis.call('ZSCORE', archive, id)
local kept = redis.call('HEXISTS', archive_payload, id) == 1
local weights = {redis.call('HSTRLEN', archive_payload, id)}
local live = redis.call('HEXISTS', payload, id) == 1
local same = archived_at and tonumber(archived_at) == archived_ms
local answer = kept and same and not live and '1' or '0'
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)
redis.call('ZCARD', expiry)
local victims, arriving, weight, recount_ms = {answer == '1' and id or nil}, 0, 0, math.huge
local overflow = false

-- use: archive_size, size_without_victims

redis.call('ZREMRANGEBYRANK', archive, 1, 0) -- removes nothing: see shared/at_maxmemory.lua
-- use: drop_victims

if answer == '1' then
  redis.call('HSET', payload, id, string.format('{"due":%.0f,', now) .. record)
  redis.call('LPUSH', behind, id)
  if expires_ms then redis.call('ZADD', expiry, expires_ms, id) end
  if rung == 0 then redis.call('RPUSH', doorbell, '1') end
end

note('requeued', by, {answer == '1' and id or nil}, why ~= '' and {why} or nil)
-- use: receipt
return answer
