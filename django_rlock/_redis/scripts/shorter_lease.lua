-- Included by the scripts that shorten the lease of a held lock, not called on its own.

-- include: announce

-- Waiters sleep until the end of the lease that they know of. So one of each client, and the first of each queue, tries
-- again, and learns when the new lease ends: it takes the lock then, and its release wakes the next one. ``before`` is the
-- PTTL that the lock had. pcall: without the right to publish, they sleep on.
local function tell_if_shorter(before, lock, channel, queue, waiting, deadlines)
    if before >= 0 and before <= redis.call('pttl', lock) then
        return
    end
    announce(channel, waiting, deadlines)
    local first = redis.call('zrange', queue, 0, 0)[1]
    if first then
        local client = string.sub(first, 1, 36)
        redis.pcall('publish', 'rlock_wake:' .. client, ' ' .. first .. ' ' .. lock)
    end
end
