-- Included by the scripts that free a lock, not called on its own.

-- Notifies Redisson's waiters that a lock is free: all waiters of its plain lock, and the first living waiter of its fair
-- lock, which has its own channel. A waiter lives if somebody hears it there: deadlines are from the clocks of Java's
-- hosts. The entry of a dead waiter whose deadline has passed is removed, as Redisson's scripts would. pcall: without the
-- right to publish, or to read that queue, the waiters retry by themselves.
local function announce(channel, waiting, deadlines)
    redis.pcall('publish', channel, '0')
    local owner = redis.pcall('lindex', waiting, '0') -- Redis 7 takes 2,000 instructions to format a number
    if type(owner) ~= 'string' then
        return
    end
-- include: clock
-- include: java_entry
-- include: listeners
    -- Each entry blocks the server for some 2 us, so a call removes, and passes, no more.
    local most_removed, most_passed = 100, 20
    local removed, place = 0, 0
    while type(owner) == 'string' and place <= most_passed do
        if owner == OURS and leave_javas(waiting, deadlines) then
            place = -1
        else
            local its_channel, deadline = channel .. ':' .. owner, tonumber(redis.call('zscore', deadlines, owner))
            local is_late = deadline and deadline <= now_ms()
            -- A monitor of all channels receives a message too, but does not count as a listener.
            if (not is_late or listeners(its_channel) > 0) and redis.pcall('publish', its_channel, '0') ~= 0 then
                return
            end
            local may_go = place == 0 and removed < most_removed and (is_late or not deadline)
            if may_go and remove_first(waiting, deadlines, owner) then
                removed, place = removed + 1, -1
            end
        end
        place = place + 1
        owner = redis.pcall('lindex', waiting, place)
    end
end
