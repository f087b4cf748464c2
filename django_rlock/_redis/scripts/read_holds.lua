-- Included by the read-write lock's scripts, not called on its own.
--
-- For each hold of a reader there is a key that lives as long as its lease: {name}:<reader>:rwlock_timeout:<1..holds>.
-- A reader whose keys are all gone is dead, even if it is still in the hash, which lives as long as its longest holder.

-- More holds of one reader are not checked: a forged larger count must not keep the server busy.
local MOST_HOLDS = 10000

-- The number of a reader's holds; 0 if its count is not a number.
local function holds_in(count)
    if not count or not string.find(count, '^%d+$') then
        return 0
    end
    return math.min(tonumber(count), MOST_HOLDS)
end

local function hold_key(holds, reader, number)
    return holds .. ':' .. reader .. ':rwlock_timeout:' .. number
end

-- Whether a field of the lock's hash is a writer's.
local function is_writers(field)
    return string.sub(field, -6) == ':write'
end

-- The remaining lease of one reader's holds, in ms; below 0 if there is none.
local function read_lease(holds, reader, count)
    local longest = -2
    for number = 1, holds_in(count) do
        longest = math.max(longest, redis.call('pttl', hold_key(holds, reader, number)))
    end
    return longest
end

local function lease_holds(holds, reader, count, lease_ms)
    for number = 1, holds_in(count) do
        redis.call('pexpire', hold_key(holds, reader, number), lease_ms)
    end
end

-- The longest of all readers' leases, below 0 if there are no readers; the readers that are dead; and the lock's mode.
local function read_leases(lock, holds)
    local longest, dead, mode = -2, {}, nil
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local reader = fields[at]
        if reader == 'mode' then
            mode = fields[at + 1]
        elseif not is_writers(reader) then
            local lease = read_lease(holds, reader, fields[at + 1])
            longest = math.max(longest, lease)
            if lease < 0 then
                dead[#dead + 1] = reader
            end
        end
    end
    return longest, dead, mode
end

-- Removes a reader or a writer, with this count, from the lock.
local function drop(lock, holds, field, count)
    redis.call('hdel', lock, field)
    for number = 1, holds_in(count) do
        redis.call('del', hold_key(holds, field, number))
    end
end

-- Drops dead readers, and lets the lock expire with the longest lease of the others, or deletes it if there are none.
-- Returns whether any reader is left.
local function settle(lock, holds)
    local longest, dead, mode = read_leases(lock, holds)
    for _, reader in ipairs(dead) do
        redis.call('hdel', lock, reader)
    end
    if mode == 'read' then
        if longest < 0 then
            redis.call('del', lock)
            return false
        end
        redis.call('pexpire', lock, math.max(longest, 1))
        return true
    end
    -- Only the hash has the writer's own lease.
    local left = redis.call('pttl', lock)
    if left >= 0 and longest > left then
        redis.call('pexpire', lock, longest)
    end
    return true
end
