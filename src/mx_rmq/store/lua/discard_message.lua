-- discard_message: dead | quarantined -> (gone)
-- Deletes an archived message and frees its id, if the archived_ms that the operator saw is still
-- true. A refusal leaves a receipt too, so that a late copy of the call changes nothing.
--
-- Returns  1 done, 2 done by an earlier copy of this call, 0 no longer there
-- Cost     O(log A), A archived
-- keys: archive archive_payload archive_bytes | recent maker receipt totals history

local kind        = ARGV.kind                  -- which archive: dead or quarantined
local id          = ARGV.id                    -- the message
local archived_ms = tonumber(ARGV.archived_ms) -- when it was archived, as the operator saw it
local by          = ARGV.by                    -- who asks for it
-- use: clock, first_answer, history

local archived_at = redis.call('ZSCORE', archive, id)
local weights = {redis.call('HSTRLEN', archive_payload, id)}
local answer = archived_at and tonumber(archived_at) == archived_ms and '1' or '0'
local victims, arriving, weight, recount_ms = {answer == '1' and id or nil}, 0, 0, math.huge
local overflow = false

-- use: taken_id
-- Without contents, only the index was left of it: the id may belong to a live message by now.
if answer == '0' or weights[1] == 0 then marked, taken_until = false, false end

-- use: archive_size, size_without_victims

redis.call('ZREMRANGEBYRANK', archive, 1, 0) -- removes nothing: see shared/at_maxmemory.lua
-- use: drop_victims, free_id

note('discarded', by, {answer == '1' and id or nil})
-- use: receipt
return answer
