-- receipt: keep the number and the answer of this call for ten minutes.
-- needs: receipt, call, answer

redis.call('SET', receipt, call .. ' ' .. answer, 'PX', '600000')
