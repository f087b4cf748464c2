-- Included by the scripts that free a fair lock, not called on its own.

-- include: announce

-- Gives the free lock to the first waiter, or tells Redisson's clients that it is free.
local function give_to_next(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    if redis.call('exists', queue) == 1 then
-- include: fair_grant
-- include: java_entry
-- include: guests
        local now = now_us()
        local is_left = is_left_to_guests(lock, queue, alive, channel, waiting, now)
        if not is_left and grant(lock, queue, alive, claim_ms, math.floor(now / 1000)) then
            return
        end
    end
    announce(channel, waiting, deadlines)
end

local function hand_on(lock, ...)
    redis.call('del', lock)
    give_to_next(lock, ...)
end
