-- Keeps the place of a sent message of a task in the queue, or leaves it.
--
-- KEYS[1]  the place: <token>:<task id>, a newline and what it is about, with ? before it until the message is sent
-- KEYS[2]  sorted set: the keys of the places of that lock -> when they were taken or kept, s
-- ARGV[1]  nonce
-- ARGV[2]  the value that it must have, without ? and what it is about
-- ARGV[3]  how long it is kept from now on, ms; 0 leaves it
--
-- Returns {nonce, 1, ''}; or {nonce, 0, the value that it has or ''} when that is another one.

local known = redis.call('get', KEYS[1]) or ''
local value, about = string.match(known, '^%??([^\n]*)(.*)$')
if known == '' or value ~= ARGV[2] then
    return {ARGV[1], 0, known}
end
if ARGV[3] == '0' then
    redis.call('del', KEYS[1])
    redis.call('zrem', KEYS[2], KEYS[1])
else
    redis.call('set', KEYS[1], value .. about, 'px', ARGV[3])
    redis.call('zadd', KEYS[2], redis.call('time')[1], KEYS[1])
    if redis.call('pttl', KEYS[2]) < tonumber(ARGV[3]) then
        redis.call('pexpire', KEYS[2], ARGV[3])
    end
end
return {ARGV[1], 1, ''}
