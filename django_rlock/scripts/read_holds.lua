-- Included by the read-write lock's scripts, not called by itself.
--
-- For each hold of a reader one key lasts as long as its lease: {name}:<reader>:rwlock_timeout:<1..holds>. A reader whose
-- keys are all gone is dead, whatever the hash says, which lives as long as the longest of its holders.

local function hold_key(holds, reader, number)
    return holds .. ':' .. reader .. ':rwlock_timeout:' .. number
end

-- How long one reader's holds run yet, in ms; below 0 when none does.
local function read_lease(holds, reader, count)
    local longest = -2
    for number = 1, tonumber(count) or 0 do
        longest = math.max(longest, redis.call('pttl', hold_key(holds, reader, number)))
    end
    return longest
end

-- The longest of all readers' leases, below 0 when nobody reads; and the readers that are dead.
local function read_leases(lock, holds)
    local longest, dead = -2, {}
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local reader = fields[at]
        if reader ~= 'mode' and string.sub(reader, -6) ~= ':write' then
            local lease = read_lease(holds, reader, fields[at + 1])
            longest = math.max(longest, lease)
            if lease < 0 then
                dead[#dead + 1] = reader
            end
        end
    end
    return longest, dead
end

-- Takes a reader or a writer off the lock.
local function drop(lock, holds, field)
    local count = tonumber(redis.call('hget', lock, field)) or 0
    redis.call('hdel', lock, field)
    for number = 1, count do
        redis.call('del', hold_key(holds, field, number))
    end
end

-- Drops dead readers, and lets the lock end with the longest lease of the others, or now when nobody is left.
-- Answers whether somebody is.
local function settle(lock, holds)
    local longest, dead = read_leases(lock, holds)
    for _, reader in ipairs(dead) do
        redis.call('hdel', lock, reader)
    end
    if redis.call('hget', lock, 'mode') == 'read' then
        if longest < 0 then
            redis.call('del', lock)
            return false
        end
        redis.call('pexpire', lock, math.max(longest, 1))
        return true
    end
    -- The writer's own lease is known by the hash alone.
    local left = redis.call('pttl', lock)
    if left >= 0 and longest > left then
        redis.call('pexpire', lock, longest)
    end
    return true
end
