-- Included by the scripts that release a hold of a reader, not called on its own.

-- include: read_holds

-- Releases one read hold; see read_release. Returns whether the owner held the lock until now.
local function release_reader(lock, holds, channel, owner, left, lease_ms, each_makes_room)
    local held, mode = unpack(redis.call('hmget', lock, owner, 'mode'))
    if not held or not mode then -- without a mode it is a lock of another kind
        return false
    end
    local lease = read_lease(holds, owner, held)
    local alive = lease >= 0
    if left == 0 or not alive then
        drop(lock, holds, owner, held)
    else
        -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
        lease = math.max(lease, tonumber(lease_ms))
        redis.call('pexpire', lock, math.max(redis.call('pttl', lock), lease))
        redis.call('hset', lock, owner, left)
        for number = 1, left do
            redis.call('set', hold_key(holds, owner, number), 1, 'px', lease)
        end
        for number = left + 1, holds_in(held) do
            redis.call('del', hold_key(holds, owner, number))
        end
    end
    if not settle(lock, holds) or (each_makes_room and left == 0) then
        -- pcall: without the right to publish, waiters wake when the lease that they know of ends.
        redis.pcall('publish', channel, '0')
    end
    return alive
end
