-- discard_message: dead | quarantined -> (gone)
--
-- Deletes an archived message. The archived_ms that the operator saw must still be true.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local archive         = KEYS[1]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[2]  -- HASH  id -> what is kept of it
local receipt         = KEYS[3]  -- STRING  number and answer of the lane's last call

local call        = tonumber(ARGV[1]) -- its number in the lane
local id          = ARGV[2]           -- the message
local archived_ms = tonumber(ARGV[3]) -- when it was archived, as the operator saw it

-- shared: a call that comes again gets its first answer and changes nothing
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= call then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
-- end

local archived_at = redis.call('ZSCORE', archive, id)
redis.call('HLEN', archive_payload)
if not archived_at or tonumber(archived_at) ~= archived_ms then return '0' end
local answer = '1'

redis.call('HDEL', archive_payload, id)
redis.call('ZREM', archive, id)

-- shared: write the receipt
redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
-- end

return answer
