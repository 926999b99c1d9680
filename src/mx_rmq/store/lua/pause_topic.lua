-- pause_topic: dispatch_message gives nothing until resume_topic
--
-- Producing, settling and delays go on.
--
-- Returns  1 paused now, 2 paused by an earlier copy of this call, 0 it was paused already
-- Cost     O(1)

local meta    = KEYS[1] -- HASH  token, turn, paused, dropped, tick
local receipt = KEYS[2] -- STRING  number and answer of the lane's last call
local totals  = KEYS[3] -- HASH  what happened -> how often, ever
local history = KEYS[4] -- STREAM  what happened, newest last

local call     = tonumber(ARGV[1]) -- this call's number in its lane
local by       = ARGV[2]           -- who asks for it
local remember = ARGV[3]           -- history entries to keep, 0: write none

-- use: first_answer

local answer = redis.call('HEXISTS', meta, 'paused') == 1 and '0' or '1'

-- At maxmemory Redis allows the first write, and then the others.
redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', '1')

local what, done, about = 'paused', {answer == '1' and '' or nil}, nil
-- use: history
-- use: receipt
return answer
