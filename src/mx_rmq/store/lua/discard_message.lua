-- discard_message: dead | quarantined -> (gone)
--
-- Deletes an archived message. The archived_ms that the operator saw must still be true. A refusal
-- leaves a receipt too, so that a late copy of the call changes nothing.
--
-- Returns  1 done, 2 done when this call came the first time, 0 no longer there
-- Cost     O(log A), A archived

local archive         = KEYS[1]  -- ZSET  id -> time (ms): dlq or error:parse:queue
local archive_payload = KEYS[2]  -- HASH  id -> what is kept of it
local receipt         = KEYS[3]  -- STRING  number and answer of the lane's last call
local totals          = KEYS[4]  -- HASH  how many messages ever went which way
local history         = KEYS[5]  -- STREAM  what has happened, newest last

local call        = tonumber(ARGV[1]) -- its number in the lane
local id          = ARGV[2]           -- the message
local archived_ms = tonumber(ARGV[3]) -- when it was archived, as the operator saw it
local by          = ARGV[4]           -- who wants it
local remember    = ARGV[5]           -- how many entries of the history to keep, 0: none is written

-- shared: a call that comes again gets its first answer and changes nothing
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= call then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
-- end

local archived_at = redis.call('ZSCORE', archive, id)
redis.call('HLEN', archive_payload)
local answer = archived_at and tonumber(archived_at) == archived_ms and '1' or '0'

-- Removes nothing, but at maxmemory Redis allows it, and then the writes that follow.
redis.call('ZREMRANGEBYRANK', archive, 1, 0)
if answer == '1' then
  redis.call('HDEL', archive_payload, id)
  redis.call('ZREM', archive, id)
end

local what, done, about = 'discarded', {answer == '1' and id or nil}, nil

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
