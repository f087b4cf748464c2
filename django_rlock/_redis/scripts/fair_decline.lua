-- Hands on a grant that nobody waits for, unless it has been confirmed.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- KEYS[5]  queue of Redisson's fair lock
-- KEYS[6]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner, in its form in the queue
-- ARGV[3]  claim time, ms
--
-- Returns the nonce, for 1 if the lock was handed on or released, otherwise {nonce, 0}.

-- include: hand_on
-- include: fair_grant

if redis.call('hget', KEYS[1], ARGV[2]) ~= CLAIMED then
    return {ARGV[1], 0}
end
hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[3], KEYS[4], KEYS[5], KEYS[6])
return ARGV[1]
