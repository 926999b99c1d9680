-- end_waits: these messages no longer wait for signals.
-- needs: waits_end, waiting, awaited

for _, one in ipairs(waits_end) do
  redis.call('ZREM', waiting, one)
  redis.call('ZREMRANGEBYLEX', awaited, '[' .. one .. '\t', '(' .. one .. '\n')
end
