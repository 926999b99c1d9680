-- pause_topic: dispatch_message gives nothing until resume_topic
-- Producing, settling and delays go on.
-- Returns  1 paused now, 2 paused by an earlier copy of this call, 0 it was paused already
-- Cost     O(1)
-- keys: meta | receipt totals history

local by = ARGV.by -- who asks for it
-- use: first_answer, history

local answer = redis.call('HEXISTS', meta, 'paused') == 1 and '0' or '1'

redis.call('HDEL', meta, 'paused') -- works at maxmemory
redis.call('HSET', meta, 'paused', '1')

note('paused', by, {answer == '1' and '' or nil})
-- use: receipt
return answer
