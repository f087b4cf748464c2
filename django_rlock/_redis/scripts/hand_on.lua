-- Included by the scripts that free a fair lock, not called on its own.

-- include: fair_grant
-- include: announce
-- include: guests

-- Gives the free lock to the first waiter, or tells Redisson's clients that it is free.
local function give_to_next(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    local first = redis.call('zrange', queue, 0, 0)[1]
    local now = first and now_us()
    local stays = first and not is_left_to_guests(lock, queue, first, alive, channel, waiting, now)
    if not (stays and grant(lock, queue, alive, claim_ms, math.floor(now / 1000))) then
        announce(channel, waiting, deadlines)
    end
end

local function hand_on(lock, ...)
    redis.call('del', lock)
    give_to_next(lock, ...)
end
