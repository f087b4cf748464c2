-- Included by other scripts, not called on its own.

-- include: clock

-- include: java_entry

-- How long the entry lives after a heartbeat: while a Java client holds the lock, heartbeats come every 0.1 s, or every
-- 0.6 s from a process that waits for many locks. If our processes die, the entry keeps a free lock from Java's clients
-- for no longer; and a queue in which no Java client waits must not stay forever.
local ENTRY_MS, DAY_MS = 2000, 86400000

local function is_held_by_java(lock)
    local holder = redis.call('hkeys', lock)[1]
    return holder and is_javas(holder)
end

-- pcall: without the rights, or when memory is full, our waiters get no entry.
local function join_javas(queue, deadlines)
    if type(redis.pcall('zadd', deadlines, now_ms() + ENTRY_MS, OURS)) == 'table' then
        return
    end
    if redis.pcall('lindex', queue, 0) ~= OURS then
        if type(redis.pcall('lpush', queue, OURS)) == 'table' then
            redis.call('zrem', deadlines, OURS)
            return
        end
        redis.call('pexpire', queue, DAY_MS)
        redis.call('pexpire', deadlines, DAY_MS)
    end
end

-- After the try of a waiting owner: returns the reply, with whether a Java client holds the lock, as a fair lock's.
local function with_javas(reply, lock, queue, deadlines)
    if reply == ARGV[1] or reply[2] == 'OK' then
        leave_javas(queue, deadlines)
    elseif reply[2] ~= 'LOST' then
        local by_java = is_held_by_java(lock)
        if by_java then
            join_javas(queue, deadlines)
        end
        reply[3], reply[4] = by_java and 1 or 0, ''
    end
    return reply
end
