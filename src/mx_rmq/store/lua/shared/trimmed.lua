-- trimmed: count and log the victims. Best effort, like history.
-- needs: victims, totals, remember, history

if #victims > 0 then redis.pcall('HINCRBY', totals, 'trimmed', #victims) end
for first = 1, remember == '0' and 0 or #victims, 25 do
  local ids = table.concat(victims, ' ', first, math.min(first + 24, #victims))
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', 'trimmed', 'by', '',
    'ids', ids, 'about', '')
end
