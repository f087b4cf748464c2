-- Gives one side of a read-write lock the lease that its owner has chosen, which may be shorter.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  nonce up to which the owner's extensions are settled
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner's field in the hash
-- ARGV[3]  lease, ms
-- ARGV[4]  0, or 2 to change nothing but settle the extensions sent so far
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold this side, or no longer does.

-- include: extensions
-- include: lease
-- include: read_holds

local lock, holds, field = KEYS[1], KEYS[2], ARGV[2]
local count = redis.call('hget', lock, field)
local writes = is_writers(field)
local before = writes and redis.call('pttl', lock) or read_lease(holds, field, count)
if not count or not writes and before < 0 then
    return {ARGV[1], 0}
end
if ARGV[4] == '2' then
    settle_extensions(KEYS[3], ARGV[1])
elseif not is_settled(KEYS[3], ARGV[1]) then
    if writes then
        -- One lease serves all holds of the writer, so it may not end before its read holds do.
        redis.call('pexpire', lock, math.max(read_leases(lock, holds), tonumber(ARGV[3])))
    else
        lease_holds(holds, field, count, ARGV[3])
    end
    if before < 0 or before > tonumber(ARGV[3]) then
        -- Waiters sleep until the end of the lease that they know of. pcall: without the right to publish, they still do.
        redis.pcall('publish', KEYS[4], '1')
    end
end
if not writes then
    settle(lock, holds)
end
return ARGV[1]
