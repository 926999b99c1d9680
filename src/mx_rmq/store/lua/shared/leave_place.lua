-- leave_place: take a waiting message out of its place. An id that is too deep to be found keeps
-- its place, which dispatch_message skips. An id has at most one such place; before it gets a
-- second one, the whole list is walked.
-- needs: id, waits, delayed, list, from, deep, passed, expires, pending_high, pending, pending_low
-- needs: delay_tasks_high, delay_tasks, delay_tasks_low, cancelled, expiry, in_line, only_one, lines
-- needs: ring, blocked, waiting, awaited

if waits and expires then redis.call('ZREM', expiry, id) end
if waits and delayed then
  for _, key in ipairs({delay_tasks_high, delay_tasks, delay_tasks_low}) do
    redis.call('ZREM', key, id)
  end
  redis.call('ZREM', waiting, id)
  redis.call('ZREMRANGEBYLEX', awaited, '[' .. id .. '\t', '(' .. id .. '\n')
elseif waits and in_line then
  redis.call('ZREM', lines, in_line)
  if only_one then
    redis.call('ZREM', ring, only_one)
    redis.call('ZREM', blocked, only_one)
  end
elseif waits and list then
  redis.call('LREM', list, from, id)
elseif waits and deep and not passed then
  redis.call('SADD', cancelled, id)
elseif waits and deep then
  for _, key in ipairs({pending_high, pending, pending_low}) do
    if redis.call('LREM', key, 1, id) == 1 then break end
  end
end
