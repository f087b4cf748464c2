-- Included by the fair lock's scripts, not called on its own.

-- include: clock

-- A waiter's member of the queue is the owner's name, whose first 36 characters are its client; or, if the caller chose
-- the name, client/number/owner, with a number for each attempt. The lock is granted to the member in this form.

-- The count of a granted lock: 1. The command that confirms the grant replaces this by "1", the same number in another
-- spelling, so a late copy of that command finds no grant.
local CLAIMED = '01'

-- How many dead waiters a call removes at most: each blocks the server for some 2 us.
local DEAD_AT_ONCE = 1000

-- Whether an owner is a client of ours, by the version of its id: Redisson's ids are random UUIDs, of version 4.
local function is_ours(owner)
    return string.sub(owner, 15, 15) == '8'
end

-- Marks a process as alive for a while. Returns 1 if it was not marked.
local function mark_alive(alive, member, alive_ms, now)
    return redis.call('zadd', alive, now + alive_ms, string.sub(member, 1, 36))
end

-- Removes the marks that have expired: a process without a mark counts as dead too.
local function tidy(alive, alive_ms, now)
    redis.call('zremrangebyscore', alive, '-inf', now)
    redis.call('pexpire', alive, alive_ms * 6)
end

-- Hands the free lock to the first waiter whose process is alive, for the claim time, and wakes it by a message with
-- its ticket: see locks/attempt.py for what that proves. From now on its process counts as alive no longer than the
-- claim, so that a dead process costs the lock a single claim. Returns the member of the queue that got the lock, and how
-- many clients received its message; nil if the queue is empty; or false if the call reached its limit of dead waiters to
-- remove: the next call continues.
local function grant(lock, queue, alive, claim_ms, now)
    local head = redis.call('zpopmin', queue)
    if not head[1] then
        return nil
    end
    now = now or now_ms()
    local dead = 0
    repeat
        local member, ticket = head[1], head[2]
        local client = string.sub(member, 1, 36)
        -- 0: its process counts as alive for no longer than the claim already, or not at all.
        local shortened = redis.call('zadd', alive, 'xx', 'lt', 'ch', now + claim_ms, client)
        if shortened == 1 or (tonumber(redis.call('zscore', alive, client)) or 0) > now then
            redis.call('hset', lock, member, CLAIMED)
            redis.call('pexpire', lock, claim_ms)
            -- pcall: a user without the right to publish still hands the lock on, and a heartbeat finds it.
            return member, redis.pcall('publish', 'rlock_wake:' .. client, ticket .. ' ' .. member .. ' ' .. lock)
        end
        -- If the process was only slow, its next heartbeat finds the ticket gone, and wakes all its waiters to try again.
        redis.call('zrem', alive, client)
        dead = dead + 1
        if dead == DEAD_AT_ONCE then
            if redis.call('exists', queue) == 0 then
                return nil
            end
            return false
        end
        head = redis.call('zpopmin', queue)
    until not head[1]
    return nil
end
