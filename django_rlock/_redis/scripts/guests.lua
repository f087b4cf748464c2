-- Included by the fair lock's scripts, not called on its own.

-- Redisson's clients do not know the queue. If the queue were never empty, they would never get the lock. So about every
-- fourth release that finds such a client waiting leaves the lock free for them, for GUESTS_MS.

-- The member of the alive marks whose score is the epoch ms until which the free lock is left to them.
local GUESTS, GUESTS_MS = 'guests', 100

-- A subscriber may be a process that is stopped, a monitor, or a client of another database, and none of these takes the
-- lock. So after each pause the next one comes later, by twice the time, unless a Java client was seen to hold the lock
-- since. These members' scores are the epoch ms until which there is no pause, and FAR plus the number of pauses so far:
-- marks in the past are removed.
local ABSENT, MISSED, MOST_MISSED, FAR = 'guests:absent', 'guests:missed', 5, 1e15

local function note_guest(alive)
    redis.call('zrem', alive, ABSENT, MISSED)
end

-- include: listeners

-- For how many ms the lock is still left to them; 0 if it is not. A mark further in the future is from a clock that has
-- been set back since. It is corrected: otherwise it would keep all owners out until that time. ZREM first: it is
-- allowed when memory is full, and after a write the ZADD is allowed too.
local function left_to_guests(alive)
    local now = now_ms()
    local left = (tonumber(redis.call('zscore', alive, GUESTS)) or 0) - now
    if left > GUESTS_MS then
        left = GUESTS_MS
        redis.call('zrem', alive, GUESTS)
        redis.call('zadd', alive, now + left, GUESTS)
    end
    return math.max(left, 0)
end

-- Our own processes mark their subscriptions to that channel: see keys.plain_mark().
local function others_listen(channel)
    local seen = redis.pcall('pubsub', 'numsub', channel, 'rlock_wake::' .. channel)
    return (seen[2] or 0) > (seen[4] or 0)
end

-- Leaves the free lock to Redisson's clients, if they are next. The first waiter in the queue tries to acquire it
-- meanwhile, and learns when that time ends. ``now`` is in us.
local function is_left_to_guests(lock, queue, alive, channel, waiting, now)
    if now % 4 ~= 0 then
        return false
    end
    local waits, now_ms = others_listen(channel), math.floor(now / 1000)
    -- The entry of a waiter of Redisson's fair lock may be that of a dead process, but its own channel is not: Java's
    -- clients subscribe to it while they wait. pcall: a user may lack the right to read Redisson's keys.
    for _, owner in ipairs(redis.pcall('lrange', waiting, 0, 19)) do
        waits = waits or owner ~= OURS and listeners(channel .. ':' .. owner) > 0
    end
    local first = redis.call('zrange', queue, 0, 0)[1]
    if not waits or not first then
        return false
    end
    local missed = (tonumber(redis.call('zscore', alive, MISSED)) or FAR) - FAR
    local absent_for = (tonumber(redis.call('zscore', alive, ABSENT)) or 0) - now_ms
    if absent_for > 0 and absent_for <= GUESTS_MS * 2 ^ (missed + 1) then -- it is not from a clock that was set back
        return false
    end
    local ends = now_ms + GUESTS_MS
    redis.call('zadd', alive, ends, GUESTS, ends + GUESTS_MS * 2 ^ missed, ABSENT)
    redis.call('zadd', alive, FAR + math.min(missed + 1, MOST_MISSED), MISSED)
    local client = string.sub(first, 1, 36)
    redis.pcall('publish', 'rlock_wake:' .. client, ' ' .. first .. ' ' .. lock)
    return true
end
