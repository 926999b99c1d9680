-- forget_signals: messages that have ended leave no signals behind.
-- needs: ended, any_signals, signals

for n = 1, any_signals and #ended or 0 do
  redis.call('ZREMRANGEBYLEX', signals, '[' .. ended[n] .. '\t', '(' .. ended[n] .. '\n')
end
