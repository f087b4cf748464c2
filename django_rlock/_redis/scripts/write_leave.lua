-- Included by the scripts that release a hold of a writer, not called on its own.

-- include: write_hold
-- include: write_waiters

-- Releases one write hold; see write_release. Returns whether the owner held the lock for writing.
local function release_writer(lock, holds, writers, channel, owner, left, lease_ms)
    local field = owner .. ':write'
    if redis.call('hexists', lock, field) == 0 then
        let_readers_in(writers, owner, channel)
        return false
    end
    if left == '0' then
        redis.call('hdel', lock, field)
        redis.call('hset', lock, 'mode', 'read')
        settle(lock, holds)
        -- pcall: without the right to publish, waiters wake when the lease that they know of ends.
        redis.pcall('publish', channel, '1')
    else
        set_write_holds(lock, owner, left, lease_ms)
    end
    return true
end
