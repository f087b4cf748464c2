-- Included by the scripts that take a limited lock, not called on its own.

-- include: read_holds

-- The number of owners that hold the lock, and the ms until the first lease ends. Expired leases do not count.
local function limited_holders(lock, holds, left)
    local number, first = 0, left
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local lease = fields[at] ~= 'mode' and read_lease(holds, fields[at], fields[at + 1]) or -2
        if lease >= 0 then
            number, first = number + 1, math.min(first, lease)
        end
    end
    return number, first
end

-- After how many ms a new owner may try again; nil if there is room for it. ``left`` is the lock's PTTL.
local function limited_waits(lock, holds, permits, left, mode)
    -- Without a mode, a lock of another kind is held.
    if left ~= -2 and mode ~= 'read' then
        return left
    end
    local number, first = limited_holders(lock, holds, left)
    return number >= permits and first or nil
end
