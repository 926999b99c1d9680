-- requeue_message: dead | quarantined -> pending
--
-- Sends an archived message round again with the record that the operator saw or edited. The
-- archived_ms that came with it must still be true: if somebody else was faster, nothing is done.
-- The server stamps into the record since when it waits, so that its age is known. A refusal leaves
-- a receipt too, so that a late copy of the call changes nothing.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local payload         = KEYS[1]  -- HASH  id -> record
local pending_high    = KEYS[2]  -- LIST  ids, newest first
local pending         = KEYS[3]  -- LIST  ids, newest first
local pending_low     = KEYS[4]  -- LIST  ids, newest first
local archive         = KEYS[5]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[6]  -- HASH  id -> what is kept of it
local doorbell        = KEYS[7]  -- LIST  at most one ring: something is pending
local receipt         = KEYS[8]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[9]  -- HASH  how many messages ever went which way
local history         = KEYS[10] -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local call        = tonumber(ARGV[2]) -- its number in the lane
local id          = ARGV[3]           -- the message
local archived_ms = tonumber(ARGV[4]) -- when it was archived, as the operator saw it
local priority    = ARGV[5]           -- high, normal or low
local record      = ARGV[6]           -- its new one, without its first brace and when it is due
local why         = ARGV[7]           -- what is said of it in the history, or ''
local by          = ARGV[8]           -- who wants it
local remember    = ARGV[9]           -- how many entries of the history to keep, 0: none is written

-- shared: clock
local now = tonumber(now_ms)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- end

-- shared: a call that comes again gets its first answer and changes nothing
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= call then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
-- end

local archived_at = redis.call('ZSCORE', archive, id)
local kept = redis.call('HEXISTS', archive_payload, id) == 1
local live = redis.call('HEXISTS', payload, id) == 1
local same = archived_at and tonumber(archived_at) == archived_ms
local answer = kept and same and not live and '1' or '0'
local behind = ({high = pending_high, normal = pending, low = pending_low})[priority]
redis.call('LLEN', behind)
local rung = redis.call('LLEN', doorbell)

-- Removes nothing, but at maxmemory Redis allows it, and then the writes that follow.
redis.call('ZREMRANGEBYRANK', archive, 1, 0)
if answer == '1' then
  redis.call('HDEL', archive_payload, id)
  redis.call('ZREM', archive, id)
  redis.call('HSET', payload, id, string.format('{"due":%.0f,', now) .. record)
  redis.call('LPUSH', behind, id)
  if rung == 0 then redis.call('RPUSH', doorbell, '1') end
end

local what, done, about = 'requeued', {answer == '1' and id or nil}, why ~= '' and {why} or nil

-- shared: count what has happened, and write it down; that this fails is no reason to fail
if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
-- end

-- shared: write the receipt
redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
-- end

return answer
