-- next_ids: the ids to take from the pending lists, oldest first, level by level.
-- needs: levels, kept, take
-- defines: ids, count

local ids, count = {}, 0
for level, key in ipairs(levels) do
  if kept[level] then
    for i = 1, take[level] do ids[count + i] = kept[level][i] end
    count = count + take[level]
  elseif take[level] > 0 then
    local tail = redis.call('LRANGE', key, -take[level], '-1')
    for i = #tail, 1, -1 do
      count = count + 1
      ids[count] = tail[i]
    end
  end
end
