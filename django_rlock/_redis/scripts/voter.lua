-- Included by RedLock's scripts, not called on its own.
--
-- A node's data contain a mark, which is lost with the data. It belongs to one replication id: a server gets another one
-- when it starts, and when it becomes a primary. So data that came back in an older state have the mark of another id,
-- even in a process that was the primary before. They get a new, unique mark, like new data.
--
-- Returns the node's run id if somebody has known its data for this quarantine, else the mark, which is empty if the
-- data have none; and the longest quarantine of all who use the node, in ms.

local function mark_of(key, former, owner, quarantine)
    local replication = string.match(redis.call('info', 'replication'), 'master_replid:(%x+)')
        or error('INFO does not report master_replid, by which RedLock recognizes data that have lost locks', 0)
    local mark, marked, known, kept, longest =
        unpack(redis.call('hmget', key, 'mark', 'replication', 'known', 'kept', 'quarantine'))
    if marked ~= replication then
        mark, known, kept = '?' .. owner, '', 0
        if marked then
            redis.call('del', former) -- it has no replication id, so it outlives no change of that
        else
            known, kept = redis.call('get', former) or '', quarantine
        end
        -- pcall: if memory is full, they get none yet.
        redis.pcall('hset', key, 'mark', mark, 'replication', replication, 'known', known, 'kept', kept)
        if redis.call('hget', key, 'replication') ~= replication then
            return {'', tonumber(quarantine)}
        end
    end
    if tonumber(quarantine) > (tonumber(longest) or 0) then
        longest = quarantine
        redis.pcall('hset', key, 'quarantine', longest)
    end
    local is_known = known ~= '' and tonumber(kept) >= tonumber(quarantine)
    return {is_known and known or mark, tonumber(longest)}
end
