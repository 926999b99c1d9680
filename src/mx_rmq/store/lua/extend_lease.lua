-- extend_lease: processing -> processing
-- Moves the deadlines of a worker's leases: of running messages, also if they were replaced, and of
-- those in its local slots. Safe to repeat, so it needs no receipt.
-- Returns  one digit per message: 1 extended, 0 not its lease
-- Cost     O(log P) per message, P in processing
-- keys: processing expire_monitor

local lease_ms = tonumber(ARGV.lease_ms) -- how long until the leases run out
local each, width = ARGV.each, 2 -- per message: id, token
-- use: clock, held_messages
for n = 1, #replaced do held[count + n] = replaced[n] end
answer = string.gsub(answer, 'r', '1')
if #held == 0 then return answer end

local deadline, deadlines = string.format('%.0f', now + lease_ms), {}
for n = 1, #held do
  deadlines[2 * n - 1] = deadline
  deadlines[2 * n] = held[n]
end

redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
redis.call('ZADD', expire_monitor, unpack(deadlines))
return answer
