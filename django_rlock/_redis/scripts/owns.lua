-- Included by other scripts, not called on its own.

-- The count of an owner that holds a lock exclusively, or false. In a read-write lock's hash, which has a mode, the
-- field is the share of a reader.
local function owns(lock, owner)
    local found = redis.call('hmget', lock, owner, 'mode')
    return not found[2] and found[1]
end
