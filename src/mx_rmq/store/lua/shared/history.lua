-- history: count what happened, and log it: 25 ids per entry, or one if each has details.
-- Best effort (pcall): a message must not fail because its history cannot be written.
-- needs: done, totals, what, remember, about, history, by

if #done > 0 then redis.pcall('HINCRBY', totals, what, #done) end
for first = 1, remember == '0' and 0 or #done, about and 1 or 25 do
  local ids = table.concat(done, ' ', first, about and first or math.min(first + 24, #done))
  local more = about and about[first] or ''
  redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by, 'ids', ids,
    'about', more)
end
