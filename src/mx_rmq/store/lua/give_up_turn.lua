-- give_up_turn: end a worker's turn to look after topics, so that another one can claim it at once
-- Safe to repeat: a late copy ends at most a turn of the same worker, which is stopping.
-- Returns  1 done, 0 it does not have the turn
-- Cost     O(1)
-- keys: caretaker

local worker = ARGV.worker -- who stops

if redis.call('GET', caretaker) ~= worker then return 0 end

redis.call('PEXPIRE', caretaker, 0) -- a worker may not use DEL
return 1
