-- resume_topic: dispatch_message gives messages again
--
-- Rings the doorbell if something waits.
--
-- Returns  1 resumed now, 2 resumed when this call came the first time, 0 it was not paused
-- Cost     O(1)

local pending_high = KEYS[1]  -- LIST  ids, newest first
local pending      = KEYS[2]  -- LIST  ids, newest first
local pending_low  = KEYS[3]  -- LIST  ids, newest first
local doorbell     = KEYS[4]  -- LIST  at most one ring: something is pending
local meta         = KEYS[5]  -- HASH  token, turn, paused, dropped, tick
local receipt      = KEYS[6]  -- STRING  number and answer of the lane's last call
local totals       = KEYS[7]  -- HASH  how many messages ever went which way
local history      = KEYS[8]  -- STREAM  what has happened, newest last

local call     = tonumber(ARGV[1]) -- its number in the lane
local by       = ARGV[2]           -- who wants it
local remember = ARGV[3]           -- how many entries of the history to keep, 0: none is written

-- shared: a call that comes again gets its first answer and changes nothing
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= call then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
-- end

local waiting = 0
for _, key in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', key)
end
local rung = redis.call('LLEN', doorbell)
local answer = redis.call('HEXISTS', meta, 'paused') == 1 and '1' or '0'

redis.call('HDEL', meta, 'paused')
if waiting > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

local what, done, about = 'resumed', {answer == '1' and '' or nil}, nil

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
