-- Gives a write lock a new lease, which never ends before its owner's read holds.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  for an extension: nonce up to which the owner's extensions are settled
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is; 0, an extension, replaces any; 2 settles the extensions sent so far
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for writing.

-- include: extensions
-- include: lease
-- include: read_holds

local lock = KEYS[1]
if redis.call('hexists', lock, ARGV[2] .. ':write') == 0 then
    return {ARGV[1], 0}
end
if ARGV[4] == '1' then
    redis.call('pexpire', lock, no_shorter(lock, ARGV[3]))
elseif ARGV[4] == '2' then
    settle_extensions(KEYS[3], ARGV[1])
elseif not is_settled(KEYS[3], ARGV[1]) then
    redis.call('pexpire', lock, math.max(read_leases(lock, KEYS[2]), tonumber(ARGV[3])))
end
return {ARGV[1], 1}
