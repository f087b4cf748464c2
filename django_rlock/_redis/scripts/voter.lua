-- Included by RedLock's scripts, not called on its own.
--
-- A node's data contain a mark, which is lost with the data. It belongs to one replication id: a server gets another one
-- when it starts, and when it becomes a primary. So data that came back in an older state have the mark of another id,
-- even in a process that was the primary before. They get a new, unique mark, like new data.

local function mark_of(key, former, owner)
    local replication = string.match(redis.call('info', 'replication'), 'master_replid:(%x+)')
        or error('INFO does not report master_replid, by which RedLock recognizes data that have lost locks', 0)
    local known = redis.call('hmget', key, 'mark', 'replication')
    if known[2] == replication then
        return known[1]
    end
    -- The mark of release 0.1 counts once. It has no replication id, so it must not outlive the next change of that.
    local mark = not known[2] and redis.call('get', former) or '?' .. owner
    if known[2] then
        redis.call('del', former)
    end
    -- pcall: if memory is full, they get none yet.
    redis.pcall('hset', key, 'mark', mark, 'replication', replication)
    return redis.call('hget', key, 'replication') == replication and mark or ''
end
