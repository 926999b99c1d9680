-- discard_message: dead | quarantined -> (gone)
--
-- Deletes an archived message, and frees its id: it can be produced again at once. The archived_ms
-- that the operator saw must still be true.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local archive         = KEYS[1]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[2]  -- HASH  id -> what is kept of it
local recent          = KEYS[3]  -- ZSET  custom id -> until when it is taken (ms)
local maker           = KEYS[4]  -- STRING  receipt of the lane that made the id, if one did
local receipt         = KEYS[5]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[6]  -- HASH  how many messages ever went which way
local history         = KEYS[7]  -- STREAM  what has happened, newest last

local now_ms      = ARGV[1]           -- the time (ms), or '' for the server's
local call        = tonumber(ARGV[2]) -- its number in the lane
local id          = ARGV[3]           -- the message
local made        = ARGV[4]           -- '1': a lane made the id
local archived_ms = tonumber(ARGV[5]) -- when it was archived, as the operator saw it
local by          = ARGV[6]           -- who wants it
local remember    = ARGV[7]           -- how many entries of the history to keep, 0: none is written

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
if not archived_at or tonumber(archived_at) ~= archived_ms then return '0' end
local answer = '1'

-- shared: what keeps the id taken
local taken_until = redis.call('ZMSCORE', recent, id)[1]
local recent_ttl = redis.call('PTTL', recent)
local marked = made == '1' and (taken_until or redis.pcall('GET', maker))
-- end
-- Without contents, only the index was left of it: the id may belong to a live message by now.
if not kept then marked, taken_until = false, false end

redis.call('HDEL', archive_payload, id)
redis.call('ZREM', archive, id)

-- shared: free the id
if marked then
  redis.call('ZADD', recent, string.format('%.0f', now + 1800000), '!' .. id)
  redis.call('PEXPIRE', recent, math.max(recent_ttl, 1800000))
elseif taken_until and made == '0' then
  redis.call('ZREM', recent, id)
end
-- end

local what, done, about = 'discarded', {id}, nil

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
