-- Gives back one hold of Redisson's plain lock; the last one frees it and wakes its waiters.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 frees the lock
-- ARGV[4]  lease that the remaining holds get, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock.

-- include: owns

if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
if ARGV[3] == '0' then
    redis.call('del', KEYS[1])
    -- pcall: without the right to publish, waiters wake when the lease they were told of ends.
    redis.pcall('publish', KEYS[2], '0')
else
    -- PEXPIRE first: it is allowed when memory is full, and after a write the HSET is allowed too.
    redis.call('pexpire', KEYS[1], ARGV[4])
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
end
return {ARGV[1], 1}
