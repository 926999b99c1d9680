-- survey_topics: read
-- Tells a worker what comes next in each of many topics, in a cluster those of one slot. A key of a
-- wrong type counts as empty, so that one broken topic does not hide the others. A level that
-- process_delay_message skips has nothing due here either.
-- Returns  now (ms), then for each topic: how many are pending, 0 if it is paused; the ms until the
--          next due time, the next lease deadline, and the next expiry of a waiting message. 0: it
--          has come, -1: there is none; how many wait for signals
-- Cost     O(log N) per topic, N delayed or in processing
-- keys: pending* | delay_tasks* | waiting | lines | expire_monitor expiry | meta

local stride = 11 -- keys per topic: those above are the first topic's, the others follow
-- use: clock

local reply = {string.format('%.0f', now)}
for first = 1, #KEYS, stride do
  pending_high, pending, pending_low,
    delay_tasks_high, delay_tasks, delay_tasks_low,
    waiting, lines, expire_monitor, expiry, meta = unpack(KEYS, first, first + stride - 1)
  local levels = {
    {delay_tasks_high, pending_high}, {delay_tasks, pending}, {delay_tasks_low, pending_low},
  }
  local ready, due = 0, math.huge
  for _, level in ipairs(levels) do
    local soonest = redis.pcall('ZRANGE', level[1], 0, 0, 'WITHSCORES')
    local length = redis.pcall('LLEN', level[2])
    if type(length) == 'number' then
      ready = ready + length
      due = math.min(due, tonumber(soonest[2]) or math.huge)
    end
  end
  local in_lines = redis.pcall('ZCARD', lines)
  ready = ready + (type(in_lines) == 'number' and in_lines or 0)
  local parked = redis.pcall('ZCARD', waiting)
  local soonest = redis.pcall('ZRANGE', expire_monitor, 0, 0, 'WITHSCORES')
  local deadline = tonumber(soonest[2]) or math.huge
  soonest = redis.pcall('ZRANGE', expiry, 0, 0, 'WITHSCORES')
  local expires = tonumber(soonest[2]) or math.huge
  reply[#reply + 1] = redis.pcall('HEXISTS', meta, 'paused') == 1 and 0 or ready
  reply[#reply + 1] = due == math.huge and -1 or math.max(0, math.ceil(due - now))
  reply[#reply + 1] = deadline == math.huge and -1 or math.max(0, math.ceil(deadline - now))
  reply[#reply + 1] = expires == math.huge and -1 or math.max(0, math.ceil(expires - now))
  reply[#reply + 1] = type(parked) == 'number' and parked or 0
end
return reply
