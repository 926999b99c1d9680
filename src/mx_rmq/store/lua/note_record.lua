-- note_record: processing -> processing
-- Gives messages new records: what their handlers have finished so far is never done again. A
-- worker that has lost the lease changes nothing.
-- Returns  same as complete_message
-- Cost     O(1) per message
-- keys: payload | processing expire_monitor | receipt totals history

local each, width = ARGV.each, 4 -- per message: id, token, record, about
-- use: first_answer, history, held_messages
if count == 0 then return answer end

redis.call('HLEN', payload)
local records, about = {}, {}
for n, i in ipairs(mine) do
  records[2 * n - 1], records[2 * n], about[n] = ARGV[i], ARGV[i + 2], ARGV[i + 3]
end

redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
redis.call('HSET', payload, unpack(records))

note('noted', worker, held, about)
-- use: receipt
return answer
