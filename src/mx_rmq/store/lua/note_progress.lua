-- note_progress: processing -> processing
-- Keeps what handlers say about their progress, each in a separate key that expires, and wakes
-- those who watch the messages. What a worker without the lease says is ignored. The token tells
-- which attempt it belongs to. Safe to repeat, so it needs no receipt.
-- Returns  one letter per message: 1 kept, 0 not its lease, r the message was replaced
-- Cost     O(1) per message
-- keys: processing expire_monitor

local keep_ms = tonumber(ARGV.keep_ms) -- how long it is kept, unless it is reported again
local channel = ARGV.channel           -- where those who watch listen
local each, width = ARGV.each, 3 -- per message: id, token, progress (JSON)
-- use: held_messages
if count == 0 then return answer end

local places, told = {}, {} -- the keys of the progress follow those above, in the same order
for n, i in ipairs(mine) do
  places[n] = #KEYS - #ids + (i - each) / width + 1
  redis.call('PTTL', KEYS[places[n]])
  told[n] = string.format('progress %d -1\n', #held[n]) .. held[n]
end

redis.call('ZREMRANGEBYRANK', expire_monitor, 1, 0) -- removes nothing, but works at maxmemory
for n, i in ipairs(mine) do
  redis.call('SET', KEYS[places[n]], ARGV[i + 1] .. ' ' .. ARGV[i + 2], 'PX', keep_ms)
end
redis.pcall('PUBLISH', channel, table.concat(told))
return answer
