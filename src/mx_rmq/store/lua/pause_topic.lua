-- pause_topic: dispatch_message gives nothing until resume_topic
--
-- Producing, settling and delays go on.
--
-- Returns  1 paused now, 2 paused when this call came the first time, 0 it was paused already
-- Cost     O(1)

local meta    = KEYS[1]  -- HASH  token, turn, paused, dropped, tick
local receipt = KEYS[2]  -- STRING  number and answer of the lane's last call

local call = tonumber(ARGV[1]) -- its number in the lane

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

-- shared: write the receipt
redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')
-- end

return answer
