-- Gives a held lock a new lease.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is, 0 replaces any
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock.

-- include: owns

if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
-- A renewal may arrive after its owner has chosen a longer lease.
if ARGV[4] == '0' or redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return {ARGV[1], 1}
