-- pending_levels: how many messages without a key wait on each level. A cancelled place counts for
-- nothing: where there are any, `kept` are the other ids at the end of the list, and `behind` is
-- how many places come before these.
-- needs: open, pending_high, pending, pending_low, cancelled, max_count
-- defines: levels, left, take, kept, behind, read, surplus, gone, places, usual, offers

local levels = {pending_high, pending, pending_low}
local left, take = {}, {0, 0, 0}
for level, key in ipairs(levels) do
  local length = open and redis.pcall('LLEN', key)
  left[level] = type(length) == 'number' and length or 0
end
local kept, behind, read, surplus, gone = {}, {0, 0, 0}, {0, 0, 0}, {}, {}
local places = open and redis.pcall('SCARD', cancelled)
if type(places) == 'number' and places > 0 then
  for level, key in ipairs(levels) do
    if left[level] > 0 then
      local tail = redis.call('LRANGE', key, -max_count - 100, '-1')
      local marks, others = redis.call('SMISMEMBER', cancelled, unpack(tail)), {}
      for i = #tail, 1, -1 do
        local id = tail[i]
        if marks[i] == 1 and not gone[id] then
          gone[id], surplus[#surplus + 1] = true, id
        else
          others[#others + 1] = id
        end
      end
      kept[level], read[level], behind[level] = others, #tail, left[level] - #tail
      left[level] = #others
    end
  end
end
local usual, offers = {1, 2, 3}, {[4] = {2, 1, 3}, [9] = {3, 1, 2}}
