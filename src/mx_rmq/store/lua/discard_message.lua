-- discard_message: dead | quarantined -> (gone)
-- Deletes an archived message and frees its id, if it still has the archived_ms that was seen.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 no longer there
-- Cost     O(log A), A archived
-- keys: archive archive_payload archive_bytes | signals | recent maker receipt totals history

-- use: clock, first_answer, history, archived_message

local answer = same and '1' or '0'
local victims = {same and id or nil}
local ended, any_signals = victims, redis.call('ZCARD', signals) > 0

-- use: taken_id
-- Without contents, only the index was left of it: the id may belong to a live message by now.
if not same or weights[1] == 0 then marked, taken_until = false, false end

-- use: archive_size, drop_victims, forget_signals, free_id

note('discarded', by, victims)
-- use: receipt
return answer
