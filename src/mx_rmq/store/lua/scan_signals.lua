-- scan_signals: read
-- The messages for which signals have arrived, in the order of their ids, without the signals,
-- which may be large.
-- Returns  up to `step` ids that come after `start`
-- Cost     O(log N) per id, N kept
-- keys: signals

local start = ARGV.start          -- the last id of the reply before, or ''
local step  = tonumber(ARGV.step) -- how many ids at most

local ids, from = {}, start == '' and '-' or '(' .. start .. '\n'
for n = 1, step do
  local member = redis.call('ZRANGEBYLEX', signals, from, '+', 'LIMIT', 0, 1)[1]
  if not member then break end
  ids[n] = string.match(member, '^[^\t]*')
  from = '(' .. ids[n] .. '\n'
end
return ids
