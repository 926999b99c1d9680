-- same_dispatch: a dispatch that comes again gets the same messages, as far as the worker still
-- holds them, and is told to ask again.
-- needs: now, receipt, payload, processing
-- defines: call, worker, reply, lease_end, noted, last, first_answer

local call   = ARGV.call   -- this call's number in its lane
local worker = ARGV.worker -- who takes the messages
local reply = {string.format('%.0f', now), -1}
local lease_end = ':' .. worker
local noted = redis.call('GET', receipt) or ''
local last, first_answer = string.match(noted, '^(%d+) ()')
if last and tonumber(last) >= tonumber(call) then
  -- The answer is the first token, then for each message the length of its id and the id.
  local from, to, token = string.find(noted, '^(%d+) ', first_answer)
  local length
  if from then from, to, length = string.find(noted, '^(%d+) ', to + 1) end
  while from do
    local id, number = string.sub(noted, to + 1, to + length), string.format('%.0f', token)
    local record = redis.call('HGET', payload, id)
    if record and redis.call('HGET', processing, id) == number .. lease_end then
      reply[#reply + 1] = id
      reply[#reply + 1] = number
      reply[#reply + 1] = record
    end
    token = token + 1
    from, to, length = string.find(noted, '^(%d+) ', to + length + 1)
  end
  reply[2] = 0
  return reply
end
