-- Included by other scripts, not called on its own.

-- How often an owner holds a lock alone, or false. In a read-write lock's hash, which has a mode, its field is a
-- reader's share.
local function owns(lock, owner)
    local found = redis.call('hmget', lock, owner, 'mode')
    return not found[2] and found[1]
end
