-- Included by other scripts, not called by itself.

-- Whether an owner holds a lock alone. In a read-write lock's hash, which has a mode, its field is a reader's share.
local function owns(lock, owner)
    local found = redis.call('hmget', lock, owner, 'mode')
    return found[1] and not found[2]
end
