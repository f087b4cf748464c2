-- Included by the scripts that free a fair lock, not called on its own.

-- include: fair_grant
-- include: announce

-- Takes the lock from its holder, and gives it to the first waiter, or frees it.
local function hand_on(lock, queue, alive, claim_ms, channel, waiting, deadlines)
    redis.call('del', lock)
    if not grant(lock, queue, alive, claim_ms) then
        announce(channel, waiting, deadlines)
    end
end
