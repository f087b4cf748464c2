-- Gives a held lock a new lease.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock.

if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
    return {ARGV[1], 0}
end
return {ARGV[1], redis.call('pexpire', KEYS[1], ARGV[3])}
