-- pause_topic: dispatch_message gives nothing until resume_topic
--
-- Producing, settling and delays go on.
--
-- Returns  1 paused now, 2 paused when this call came the first time, 0 it was paused already
-- Cost     O(1)

local meta    = KEYS[1]  -- HASH  token, turn, paused, dropped, tick
local receipt = KEYS[2]  -- STRING  number and answer of the lane's last call
local totals  = KEYS[3]  -- HASH  how many messages ever went which way
local history = KEYS[4]  -- STREAM  what has happened, newest last

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

local answer = redis.call('HEXISTS', meta, 'paused') == 1 and '0' or '1'

-- At maxmemory Redis allows the first write, and then the others.
redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', '1')

local what, done, about = 'paused', {answer == '1' and '' or nil}, nil

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
