-- resume_topic: dispatch_message gives messages again
-- Rings the doorbell if something waits.
-- Returns  1 resumed now, 2 resumed by an earlier copy of this call, 0 it was not paused
-- Cost     O(1)
-- keys: pending* | lines | doorbell meta | receipt totals history

local by = ARGV.by -- who asks for it
-- use: first_answer, history

local waiting = redis.call('ZCARD', lines)
for _, key in ipairs({pending_high, pending, pending_low}) do
  waiting = waiting + redis.call('LLEN', key)
end
local rung = redis.call('LLEN', doorbell)
local answer = redis.call('HEXISTS', meta, 'paused') == 1 and '1' or '0'

redis.call('HDEL', meta, 'paused')
if waiting > 0 and rung == 0 then redis.call('RPUSH', doorbell, '1') end

note('resumed', by, {answer == '1' and '' or nil})
-- use: receipt
return answer
