-- Included by RedLock's scripts, not called on its own.
--
-- A node's data contain a mark, which is lost with the data. It belongs to one replication id: a server gets another one
-- when it starts, and when it becomes a primary. So data that came back in an older state have the mark of another id,
-- even in a process that was the primary before. They get a new, unique mark, like new data.
--
-- Returns the node's run id if a process has known the node's data for this quarantine, otherwise the mark (empty if
-- there is none); the longest quarantine of all who use the node, in ms; and the names of the other lists of nodes.

-- The names of the other lists with the same prefix that were used on this node within the longest quarantine.
local function other_lists(key, stored, list, longest)
    local now, used, others, kept = tonumber(redis.call('time')[1]), nil, {}, {}
    -- Not each use is a write. All nodes count the same uses, so a list that is not used any more ends everywhere at once.
    local period = math.ceil(longest / 4000)
    local last = now - now % period
    for name, at in string.gmatch(stored or '', '(%S+) (%d+)') do
        if name == list then
            used = tonumber(at)
        elseif tonumber(at) > now - longest / 1000 then
            kept[#kept + 1] = name .. ' ' .. at
            if string.match(name, '^%x*:') == string.match(list, '^%x*:') then
                others[#others + 1] = name
            end
        end
    end
    if used ~= last then
        kept[#kept + 1] = list .. ' ' .. last
        redis.pcall('hset', key, 'lists', table.concat(kept, ' '))
    end
    return table.concat(others, ' ')
end

local function mark_of(key, former, owner, quarantine, list)
    local replication = string.match(redis.call('info', 'replication'), 'master_replid:(%x+)')
        or error('INFO does not report master_replid, by which RedLock recognizes data that have lost locks', 0)
    local mark, marked, known, kept, longest, lists =
        unpack(redis.call('hmget', key, 'mark', 'replication', 'known', 'kept', 'quarantine', 'lists'))
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
            return {'', tonumber(quarantine), ''}
        end
    end
    if tonumber(quarantine) > (tonumber(longest) or 0) then
        longest = quarantine
        redis.pcall('hset', key, 'quarantine', longest)
    end
    local is_known = known ~= '' and tonumber(kept) >= tonumber(quarantine)
    return {is_known and known or mark, tonumber(longest), other_lists(key, lists, list, tonumber(longest))}
end
