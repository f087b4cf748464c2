-- Included by other scripts, not called on its own.

-- A release of Redisson's fair lock notifies only the first entry of Redisson's queue. So while a Java client holds a
-- lock that our processes wait for, they have a single entry there, before Java's. Java's clients take no lock while it
-- is alive. It is removed when one of ours takes the lock in its turn, or releases it; so Java's clients come next.
-- Redisson's arithmetic, which lowers the deadlines of those behind a client that takes the lock, never applies to it.
local OURS = 'rlock_waiters'

-- Redisson's owners are a random UUID, of version 4, and the number of a thread. A named owner may be such a UUID alone.
local function is_javas(owner)
    return string.match(owner, '^%x+%-%x+%-4%x+%-%x+%-%x+:') ~= nil
end

-- Removes an owner's entry if it is the first. LPOP first: Java would never remove an entry without a deadline. pcall: a
-- user may lack the rights. Returns whether it was removed.
local function remove_first(queue, deadlines, owner)
    if redis.pcall('lindex', queue, 0) ~= owner or redis.pcall('lpop', queue) ~= owner then
        return false
    end
    redis.call('zrem', deadlines, owner)
    return true
end

local function leave_javas(queue, deadlines)
    if not remove_first(queue, deadlines, OURS) then
        return false
    end
    redis.pcall('persist', queue)
    redis.pcall('persist', deadlines)
    return true
end
