-- Gives a held lock the lease that its owner has chosen, which may be shorter.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  nonce up to which the owner's extensions are settled
-- KEYS[3]  Redisson's channel
-- KEYS[4]  queue of the fair lock: member -> ticket
-- KEYS[5]  queue of Redisson's fair lock
-- KEYS[6]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  0, or 2 to change nothing but settle the extensions sent so far
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock.

-- include: extensions
-- include: owns
-- include: shorter_lease

if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
if ARGV[4] == '2' then
    settle_extensions(KEYS[2], ARGV[1])
elseif not is_settled(KEYS[2], ARGV[1]) then
    local before = redis.call('pttl', KEYS[1])
    redis.call('pexpire', KEYS[1], ARGV[3])
    tell_if_shorter(before, KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
end
return ARGV[1]
