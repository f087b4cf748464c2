-- Included by other scripts, not called on its own.

-- A release of Redisson's fair lock notifies only the first entry of Redisson's queue. So while a Java client holds a
-- lock that our processes wait for, they have a single entry there, before Java's. Java's clients take no lock while it
-- is alive. It is removed when one of ours takes the lock in its turn, or releases it; so Java's clients come next.
-- Redisson's arithmetic, which lowers the deadlines of those behind a client that takes the lock, never applies to it.
local OURS = 'rlock_waiters'

-- LPOP first: Java would never remove an entry without a deadline. pcall: a user may lack the rights. Returns whether
-- there was an entry.
local function leave_javas(queue, deadlines)
    if redis.pcall('lindex', queue, 0) ~= OURS or redis.pcall('lpop', queue) ~= OURS then
        return false
    end
    redis.call('zrem', deadlines, OURS)
    redis.pcall('persist', queue)
    redis.pcall('persist', deadlines)
    return true
end
