-- preflight: read
-- Which of our commands this user may not run, or this server does not know. Each is tried on a key
-- that holds a SET, where it fails or changes no member. The error says whether it was allowed.
-- Returns  for each command that is missing: its name and the server's words
-- Cost     O(1)
-- keys: scratch

local each = ARGV.each -- per command: name

local forms = {
  EXISTS = {}, GET = {}, SET = {'x', 'PX', 0}, PEXPIRE = {600000}, PTTL = {}, TIME = false,
  HGET = {'f'}, HMGET = {'f'}, HSET = {'f', 'v'}, HDEL = {'f'}, HEXISTS = {'f'}, HLEN = {},
  HSCAN = {0}, HGETALL = {}, HRANDFIELD = {1}, HSTRLEN = {'f'}, HINCRBY = {'f', 1},
  HEXPIRE = {1, 'FIELDS', 1, 'f'}, LLEN = {}, LRANGE = {0, 0}, LPOS = {'x'}, LPUSH = {'x'},
  RPUSH = {'x'}, LTRIM = {0, 0}, LREM = {1, 'x'}, ZADD = {1, 'x'}, ZREM = {'x'}, ZSCORE = {'x'},
  ZMSCORE = {'x'}, ZCARD = {}, ZCOUNT = {0, 0}, ZRANGE = {0, 0}, ZRANGEBYSCORE = {0, 0},
  ZREMRANGEBYRANK = {1, 0}, ZREMRANGEBYLEX = {'-', '-'}, ZLEXCOUNT = {'-', '+'},
  ZRANGEBYLEX = {'-', '+'},
  XADD = {'*', 'f', 'v'}, XLEN = {}, XREVRANGE = {'+', '-'}, XTRIM = {'MAXLEN', 0},
  SCARD = {}, SISMEMBER = {'x'}, SMISMEMBER = {'x'},
}

local function denied(reply)
  local words = type(reply) == 'table' and reply.err
  return words and (string.find(words, 'NOPERM') or string.find(words, 'ACL failure')
    or string.find(words, "user .* can't") or string.find(words, 'nknown')) and words
end

local missing = {}
-- Removed first: a user who may not remove must leave nothing behind, and it works at maxmemory.
local words = denied(redis.pcall('SREM', scratch, 'x'))
if words then return {'SREM', words} end
words = denied(redis.pcall('SADD', scratch, 'x'))
if words then return {'SADD', words} end
for i = each, #ARGV do
  local form = forms[ARGV[i]]
  if form == false then
    words = denied(redis.pcall(ARGV[i]))
  else
    words = denied(redis.pcall(ARGV[i], scratch, unpack(form)))
  end
  if words then
    missing[#missing + 1] = ARGV[i]
    missing[#missing + 1] = words
  end
end
redis.pcall('SREM', scratch, 'x')
return missing
