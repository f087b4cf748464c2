-- Included by the scripts that take a lock for a reader, not called on its own.

-- include: lease
-- include: read_holds

local function is_reader(lock, holds, owner)
    return read_lease(holds, owner, redis.call('hget', lock, owner)) >= 0
end

-- Adds a hold of a reader, or enters it again. ``left`` is the lock's PTTL.
local function add_read_hold(lock, holds, owner, count, lease_ms, left)
    if left == -2 then
        -- The usual case: nobody holds it, so there is no longer lease or count to keep.
        redis.call('hset', lock, 'mode', 'read', owner, count)
        redis.call('pexpire', lock, lease_ms)
        redis.call('set', hold_key(holds, owner, count), 1, 'px', lease_ms)
        return
    end
    -- PEXPIRE first: it is allowed when memory is full, and after a write the HSET is allowed too.
    redis.call('pexpire', lock, no_shorter(lock, lease_ms))
    -- Under a name chosen by the caller, another process may rely on more holds, and on a longer lease.
    redis.call('hset', lock, owner, math.max(holds_in(redis.call('hget', lock, owner)), tonumber(count)))
    local hold = hold_key(holds, owner, count)
    redis.call('set', hold, 1, 'px', no_shorter(hold, lease_ms))
end
