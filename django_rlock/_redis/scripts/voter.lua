-- Included by RedLock's scripts, not called on its own.
--
-- A node's data contain a mark, which is lost with the data. New data get a new, unique mark.

local function mark_of(key, owner)
    -- pcall: if memory is full, they get none yet.
    redis.pcall('set', key, '?' .. owner, 'nx')
    return redis.call('get', key) or ''
end
