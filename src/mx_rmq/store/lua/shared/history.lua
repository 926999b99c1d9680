-- history: note(what, by, ids, details) counts what happened and logs it: 25 ids per entry, or one
-- if they have details. Best effort (pcall): a message must not fail because of its history.
-- needs: totals, history
-- defines: remember, note

local remember = ARGV.remember -- history entries to keep, 0: write none
local function note(what, by, ids, details)
  if #ids > 0 then redis.pcall('HINCRBY', totals, what, #ids) end
  local step = details and 1 or 25
  for first = 1, remember == '0' and 0 or #ids, step do
    redis.pcall('XADD', history, 'MAXLEN', '~', remember, '*', 'what', what, 'by', by,
      'ids', table.concat(ids, ' ', first, math.min(first + step - 1, #ids)),
      'about', details and details[first] or '')
  end
end
