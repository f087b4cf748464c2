-- Included by the scripts that free a fair lock, not called on its own.

-- Gives the free lock to the first waiter, or tells Redisson's clients that it is free.
local function give_to_next(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    -- pcall: a user who may not read Redisson's keys gets an error, and looks for waiters all the same.
    local queues = redis.pcall('exists', queue, waiting)
    if queues == 0 then -- the usual case
        redis.pcall('publish', channel, '0') -- pcall: see announce
        return
    end
-- include: announce
-- include: fair_grant
-- include: java_entry
-- include: guests
    local now = now_us()
    if not is_left_to_guests(lock, queue, alive, channel, waiting, now) then
        local member, heard = grant(lock, queue, alive, claim_ms, math.floor(now / 1000))
        if member and heard ~= 0 then
            return
        end
        -- If nobody has heard the message, that waiter is probably dead, and nobody will tell when its claim ends. So
        -- those who sleep until the end of the former lease learn now when that is.
        if member and queues == 1 then
            redis.pcall('publish', channel, '0')
            return
        end
    end
    announce(channel, waiting, deadlines)
end

local function hand_on(lock, ...)
    redis.call('del', lock)
    give_to_next(lock, ...)
end
