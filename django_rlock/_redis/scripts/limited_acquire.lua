-- Takes a lock that a limited number of owners may hold at once, or returns when the first of their leases ends.
-- Its state is that of a read-write lock with readers only.
--
-- KEYS[1]  hash of mode, reader -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how many owners may hold it
--
-- Returns {nonce, 'OK'}; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, ms}.

-- include: read_hold

local lock, holds, owner, count = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')
local again = read_lease(holds, owner, redis.call('hget', lock, owner)) >= 0

-- The number of owners that hold the lock, and the ms until the first lease ends. Expired leases do not count.
local function holders()
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

if not again then
    if count ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    -- Without a mode, a lock of another kind is held.
    if left ~= -2 and mode ~= 'read' then
        return {ARGV[1], left}
    end
    local number, first = holders()
    if number >= tonumber(ARGV[5]) then
        return {ARGV[1], first}
    end
end
add_read_hold(lock, holds, owner, count, ARGV[4], left)
return {ARGV[1], 'OK'}
