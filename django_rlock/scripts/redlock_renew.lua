-- Gives a RedLock a new lease on one node.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is, 0 replaces any
--
-- Returns {nonce, holds of the owner}; {nonce, 0} when another has the lock, {nonce, -1} when nobody has it.

local holds = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not holds then
    return {ARGV[1], redis.call('exists', KEYS[1]) - 1}
end
-- A renewal may arrive after its owner has chosen a longer lease.
if ARGV[4] == '0' or redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return {ARGV[1], holds}
