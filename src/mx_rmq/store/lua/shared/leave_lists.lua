-- leave_lists: take the messages out of the pending lists, with the cancelled places before them.
-- needs: levels, kept, read, take, surplus, cancelled

for level, key in ipairs(levels) do
  local others = kept[level]
  if others and #others < read[level] then
    local back = {}
    for i = #others, take[level] + 1, -1 do back[#back + 1] = others[i] end
    redis.call('LTRIM', key, '0', -read[level] - 1)
    if #back > 0 then redis.call('RPUSH', key, unpack(back)) end
  elseif take[level] > 0 then
    redis.call('LTRIM', key, '0', -take[level] - 1)
  end
end
if #surplus > 0 then redis.call('SREM', cancelled, unpack(surplus)) end
