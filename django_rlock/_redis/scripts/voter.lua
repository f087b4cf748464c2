-- Included by RedLock's scripts, not called on its own.
--
-- A node has a mark among its data, which is gone with them. New data get a mark that no others have.

local function mark_of(key, owner)
    -- pcall: if memory is full, they get none yet.
    redis.pcall('set', key, '?' .. owner, 'nx')
    return redis.call('get', key) or ''
end
