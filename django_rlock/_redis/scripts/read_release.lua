-- Releases one read hold; the last one of all readers frees the lock and wakes a waiter of each process.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 takes the owner off the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
-- ARGV[5]  1 if each owner that leaves makes room for another owner; 0 if only the last one does
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for reading, or no longer does.

-- include: read_holds

local lock, holds, owner, left = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3])
local held, mode = unpack(redis.call('hmget', lock, owner, 'mode'))
if not held or not mode then -- without a mode it is a lock of another kind
    return {ARGV[1], 0}
end
local lease = read_lease(holds, owner, held)
local alive = lease >= 0
if left == 0 or not alive then
    drop(lock, holds, owner)
else
    -- PEXPIRE first (rule 5 of docs/architecture.md): a full server allows it, and after it the other writes.
    lease = math.max(lease, tonumber(ARGV[4]))
    redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease))
    redis.call('hset', lock, owner, left)
    for number = 1, left do
        redis.call('set', hold_key(holds, owner, number), 1, 'px', lease)
    end
    for number = left + 1, holds_in(held) do
        redis.call('del', hold_key(holds, owner, number))
    end
end
if not settle(lock, holds) or (ARGV[5] == '1' and left == 0) then
    -- pcall: without the right to publish, waiters wake when the lease that they know of ends.
    redis.pcall('publish', KEYS[3], '0')
end
return {ARGV[1], alive and 1 or 0}
