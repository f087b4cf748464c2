-- Included by the scripts that take a read-write lock for a writer, not called on its own.

-- include: lease
-- include: read_holds

local function is_writer(lock, owner, mode)
    return mode == 'write' and redis.call('hexists', lock, owner .. ':write') == 1
end

-- The lock's PTTL, or 'UPGRADE' if its owner is a reader, and would wait for itself; nil if the lock is free.
local function writer_waits(lock, holds, owner, mode)
    if mode == 'read' then
        settle(lock, holds)
    end
    if redis.call('exists', lock) == 0 then
        return nil
    end
    local upgrade = mode == 'read' and redis.call('hexists', lock, owner) == 1
    return upgrade and 'UPGRADE' or redis.call('pttl', lock)
end

local function take_for_writer(lock, writers, owner, lease_ms)
    redis.call('hset', lock, 'mode', 'write', owner .. ':write', 1)
    redis.call('pexpire', lock, lease_ms)
    redis.call('zrem', writers, owner)
end

local function set_write_holds(lock, owner, count, lease_ms)
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', lock, no_shorter(lock, lease_ms))
    redis.call('hset', lock, owner .. ':write', count)
end
