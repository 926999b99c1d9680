-- find_history: read
-- One step back through a history, looking for one message. Other entries stay on the server.
-- Returns  where to continue ('': this was the last step), then for each entry that was found: its
--          place, what, by and about; newest first
-- Cost     O(step)
-- keys: history

local before = ARGV.before -- where to continue, '+' at first
local step   = ARGV.step   -- how many entries to search
local id     = ARGV.id     -- the message

local entries = redis.call('XREVRANGE', history, before, '-', 'COUNT', step)
local reply, alone = {''}, ' ' .. id .. ' '
if #entries == tonumber(step) then reply[1] = '(' .. entries[#entries][1] end
for _, entry in ipairs(entries) do
  local fields, ids = entry[2], ''
  for at = 1, #fields, 2 do
    if fields[at] == 'ids' then ids = fields[at + 1] break end
  end
  -- The plain search comes first: the id is rarely there, and then nothing is copied.
  if string.find(ids, id, 1, true) and string.find(' ' .. ids .. ' ', alone, 1, true) then
    local named = {}
    for at = 1, #fields, 2 do named[fields[at]] = fields[at + 1] end
    reply[#reply + 1] = entry[1]
    for _, name in ipairs({'what', 'by', 'about'}) do reply[#reply + 1] = named[name] or '' end
  end
end
return reply
