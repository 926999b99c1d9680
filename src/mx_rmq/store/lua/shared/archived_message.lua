-- archived_message: an archived message, and whether it is still as the operator saw it.
-- needs: archive, archive_payload
-- defines: kind, id, archived_ms, by, same, weights, arriving, weight, recount_ms, overflow

local kind        = ARGV.kind                  -- which archive: dead or quarantined
local id          = ARGV.id                    -- the message
local archived_ms = tonumber(ARGV.archived_ms) -- when it was archived, as the operator saw it
local by          = ARGV.by                    -- who asks for it
local same = tonumber(redis.call('ZSCORE', archive, id)) == archived_ms
local weights = {redis.call('HSTRLEN', archive_payload, id)}
local arriving, weight, recount_ms, overflow = 0, 0, math.huge, false
