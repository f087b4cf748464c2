-- Included by the scripts that free a lock, not called on its own.

-- Notifies Redisson's waiters that a lock is free: all waiters of its plain lock, and the first waiter of its fair lock,
-- which has its own channel. Waiters in its queue whose deadline has passed count as dead. pcall: without the right to
-- publish, or to read that queue, the waiters retry by themselves.
local function announce(channel, waiting, deadlines)
    redis.pcall('publish', channel, '0')
    local place, owner = 0, redis.pcall('lindex', waiting, 0)
    if type(owner) ~= 'string' then
        return
    end
-- include: clock
-- include: java_entry
    while type(owner) == 'string' do
        local deadline = tonumber(redis.call('zscore', deadlines, owner))
        if owner == OURS and leave_javas(waiting, deadlines) then
            place = -1
        elseif not deadline or deadline > now_ms() then
            redis.pcall('publish', channel .. ':' .. owner, '0')
            return
        end
        place = place + 1
        owner = redis.pcall('lindex', waiting, place)
    end
end
