-- Releases a lock, but keeps it taken for a while. Its former owner cannot take it during that time, either.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  Redisson's channel
-- KEYS[3]  queue of the fair lock: member -> ticket
-- KEYS[4]  queue of Redisson's fair lock
-- KEYS[5]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  how long it stays taken, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock.

-- include: owns
-- include: shorter_lease

local kept = 'kept:' .. ARGV[2]
if redis.call('hexists', KEYS[1], kept) == 1 then
    return ARGV[1] -- an earlier copy of this command did it
end
if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
local before = redis.call('pttl', KEYS[1])
-- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
redis.call('pexpire', KEYS[1], ARGV[3])
redis.call('hset', KEYS[1], kept, 1)
redis.call('hdel', KEYS[1], ARGV[2])
tell_if_shorter(before, KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return ARGV[1]
