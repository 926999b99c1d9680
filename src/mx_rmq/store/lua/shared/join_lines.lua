-- join_lines: the messages join their lines, and their keys the ring.
-- needs: members, lines, numbered, keyed, entering, ring, roused, blocked

if #numbered > 0 then redis.call('HSET', keyed, unpack(numbered)) end
if #members > 0 then redis.call('ZADD', lines, unpack(members)) end
if #entering > 0 then redis.call('ZADD', ring, 'NX', unpack(entering)) end
if #roused > 0 then redis.call('ZADD', blocked, unpack(roused)) end
