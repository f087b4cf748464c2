-- Included by the scripts that free a fair lock, not called on its own.

-- include: fair_grant
-- include: announce
-- include: guests

-- Takes the lock from its holder, and gives it to the first waiter, or frees it.
local function hand_on(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    redis.call('del', lock)
    local first = redis.call('zrange', queue, 0, 0)[1]
    local now = first and now_us()
    local stays = first and not is_left_to_guests(lock, queue, first, alive, channel, waiting, now)
    if not (stays and grant(lock, queue, alive, claim_ms, math.floor(now / 1000))) then
        announce(channel, waiting, deadlines)
    end
end
