-- first_answer: a call that comes again gets its first answer and changes nothing. Refusals that
-- could turn out otherwise later leave a receipt, too: a late copy must not do what was refused.
-- needs: receipt
-- defines: call, noted, last

local call = ARGV.call -- this call's number in its lane
local noted = redis.call('GET', receipt) or ''
local last = string.match(noted, '^(%d+) ')
if last and tonumber(last) >= tonumber(call) then
  return (string.gsub(string.sub(noted, #last + 2), '1', '2'))
end
