-- Included by the fair lock's scripts, not called by itself.

-- include: clock

-- A waiter stands in the queue as an owner, whose first 36 characters are its client; or, where the caller chose the
-- owner's name, as client/owner.
local function owner_of(member)
    if string.sub(member, 37, 37) == '/' then
        return string.sub(member, 38)
    end
    return member
end

-- Hands the free lock to the first waiter whose process is alive, for the claim time, and wakes it.
-- Until it confirms, its process counts as alive no longer than the claim: if the process died, one grant is lost
-- to it and no more. Returns the member of the queue that got it, or nil when nobody waits.
local function grant(lock, queue, alive, claim_ms)
    local member = redis.call('zrange', queue, 0, 0)[1]
    if not member then
        return nil
    end
    local now = now_ms()
    repeat
        redis.call('zrem', queue, member)
        local client = string.sub(member, 1, 36)
        local alive_until = tonumber(redis.call('zscore', alive, client))
        if alive_until and alive_until > now then
            if alive_until > now + claim_ms then
                redis.call('zadd', alive, now + claim_ms, client)
            end
            redis.call('hset', lock, owner_of(member), 1)
            redis.call('pexpire', lock, claim_ms)
            -- pcall: a user without the right to publish hands the lock on all the same, and a beat finds it.
            redis.pcall('publish', 'rlock_wake:' .. client, member .. ' ' .. lock)
            return member
        end
        -- The beat of a process that was only slow finds its ticket gone, and asks again for all its waiters.
        redis.call('zrem', alive, client)
        member = redis.call('zrange', queue, 0, 0)[1]
    until not member
    return nil
end

-- Takes the lock from its holder, and gives it to the first waiter or frees it for anybody.
local function hand_on(lock, queue, alive, channel, claim_ms)
    redis.call('del', lock)
    if not grant(lock, queue, alive, claim_ms) then
        redis.pcall('publish', channel, '0')
    end
end
