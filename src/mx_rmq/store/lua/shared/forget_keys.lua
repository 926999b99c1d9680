-- forget_keys: the messages are gone.
-- needs: with_key, keyed

if #with_key > 0 then redis.call('HDEL', keyed, unpack(with_key)) end
