-- Gives a write lock a new lease, which never ends before its owner's read holds.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  what the keys of the readers' holds begin with
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is, 0 replaces any
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for writing.

-- include: read_holds

local lock = KEYS[1]
if redis.call('hexists', lock, ARGV[2] .. ':write') == 0 then
    return {ARGV[1], 0}
end
local least = ARGV[4] == '1' and redis.call('pttl', lock) or read_leases(lock, KEYS[2])
redis.call('pexpire', lock, math.max(least, tonumber(ARGV[3])))
return {ARGV[1], 1}
