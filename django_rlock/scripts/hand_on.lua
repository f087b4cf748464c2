-- Included by the scripts that free a fair lock, not called on its own.

-- include: fair_grant
-- include: announce
-- include: guests

-- Takes the lock from its holder, and gives it to the first waiter, or frees it.
local function hand_on(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    redis.call('del', lock)
    if is_left_to_guests(lock, queue, alive, channel, waiting) or not grant(lock, queue, alive, claim_ms) then
        announce(channel, waiting, deadlines)
    end
end
