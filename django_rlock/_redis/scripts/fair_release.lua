-- Releases one hold of a fair lock; the last one hands the lock to the next waiter, or frees it.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- KEYS[5]  queue of Redisson's fair lock
-- KEYS[6]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 frees the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
-- ARGV[5]  claim time, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock.

-- include: hand_on
-- include: owns

if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
if ARGV[3] == '0' then
    hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[5], KEYS[4], KEYS[5], KEYS[6])
else
-- include: lease
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[4]))
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
end
return ARGV[1]
