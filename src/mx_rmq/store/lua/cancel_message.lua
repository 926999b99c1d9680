-- cancel_message: pending | delayed -> (gone)
-- Removes a message that no worker has started, and frees its id. Every client waits while Redis
-- walks a list, so only `walk` places at each end are searched. A deeper id keeps its place, which
-- dispatch_message skips. An id has at most one such place; before it gets a second one, the whole
-- list is walked. If the id is produced again with a higher priority, the new place may be skipped
-- instead of the old one: the message still runs once.
-- Returns  1 done, 2 done by an earlier copy of this call, 0 not there, p in processing
-- Cost     O(log D) if delayed; O(N) if pending, N pending and not more than six times `walk`
-- keys: payload | pending* | delay_tasks* | cancelled expiry | processing
-- keys: recent maker receipt totals history

local id   = ARGV.id             -- the message
local walk = tonumber(ARGV.walk) -- how far a list is walked from each end
local by   = ARGV.by             -- who asks for it
-- use: clock, first_answer, history

local answer = '1'
if redis.call('HEXISTS', processing, id) == 1 then
  answer = 'p'
elseif redis.call('HEXISTS', payload, id) == 0 then
  answer = '0'
end
local delayed = false
for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
  delayed = redis.call('ZSCORE', key, id) or delayed
end
local list, from, deep = nil, 1, false
for _, key in ipairs({pending_high, pending, pending_low}) do
  deep = redis.call('LLEN', key) > 2 * walk or deep
  local sought = answer == '1' and not delayed and not list
  if sought and redis.call('LPOS', key, id, 'MAXLEN', walk) then
    list = key
  elseif sought and redis.call('LPOS', key, id, 'RANK', '-1', 'MAXLEN', walk) then
    list, from = key, -1
  end
end
local passed = redis.call('SISMEMBER', cancelled, id) == 1
local expires = redis.call('ZSCORE', expiry, id)

-- use: taken_id
if answer ~= '1' then marked, taken_until = false, false end

redis.call('ZREMRANGEBYRANK', delay_tasks, 1, 0) -- removes nothing, but works at maxmemory
if answer == '1' then redis.call('HDEL', payload, id) end
if answer == '1' and expires then redis.call('ZREM', expiry, id) end
if answer == '1' and delayed then
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    redis.call('ZREM', key, id)
  end
elseif list then
  redis.call('LREM', list, from, id)
elseif answer == '1' and deep and not passed then
  redis.call('SADD', cancelled, id)
elseif answer == '1' and deep then
  for _, key in ipairs({pending_high, pending, pending_low}) do
    if redis.call('LREM', key, 1, id) == 1 then break end
  end
end

-- use: free_id

note('cancelled', by, {answer == '1' and id or nil})
-- use: receipt
return answer
