-- Releases one write hold; the last one frees the lock, or leaves it to its owner's read holds, and wakes all waiters.
-- An owner that only waits gives up its place.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  waiting writers that go first: owner -> epoch ms
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 removes the owner from the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for writing.

-- include: lease
-- include: read_holds
-- include: write_waiters

local lock, field = KEYS[1], ARGV[2] .. ':write'
if redis.call('hexists', lock, field) == 0 then
    let_readers_in(KEYS[3], ARGV[2], KEYS[4])
    return {ARGV[1], 0}
end
if ARGV[3] == '0' then
    redis.call('hdel', lock, field)
    redis.call('hset', lock, 'mode', 'read')
    settle(lock, KEYS[2])
    -- pcall: without the right to publish, waiters wake when the lease that they know of ends.
    redis.pcall('publish', KEYS[4], '1')
else
    -- PEXPIRE first (rule 5 of docs/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', lock, no_shorter(lock, ARGV[4]))
    redis.call('hset', lock, field, ARGV[3])
end
return {ARGV[1], 1}
