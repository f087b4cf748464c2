-- Gives a RedLock a new lease on one node.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  for an extension: nonce up to which the owner's extensions are settled
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is; 0, an extension, replaces any; 2 settles the extensions sent so far
--
-- Returns {nonce, holds of the owner}; {nonce, 0} if another owner has the lock, {nonce, -1} if it is not held.

-- include: extensions
-- include: lease

local holds = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not holds then
    return {ARGV[1], redis.call('exists', KEYS[1]) - 1}
end
if ARGV[4] == '1' then
    redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[3]))
elseif ARGV[4] == '2' then
    settle_extensions(KEYS[2], ARGV[1])
elseif not is_settled(KEYS[2], ARGV[1]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return {ARGV[1], holds}
