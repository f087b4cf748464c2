-- Included by the fair lock's scripts, not called on its own.

-- Redisson's clients know nothing of the queue. Where it is never empty, they would never get the lock. So about every
-- fourth time that it is released while one of them waits, it is left free for them for GUESTS_MS.

-- The member of the alive marks whose score is the epoch ms until which the free lock is left to them.
local GUESTS, GUESTS_MS = 'guests', 100

-- How many ms longer it is; 0 if it is not. A mark that is further ahead is from a clock that has been set back since,
-- and is brought back: it would keep everybody out until that time comes again. ZREM first: it is allowed when memory
-- is full, and after a write the ZADD is allowed too.
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

-- Our own processes that listen there have a mark each: see keys.plain_mark().
local function others_listen(channel)
    local seen = redis.pcall('pubsub', 'numsub', channel, 'rlock_wake::' .. channel)
    return (seen[2] or 0) > (seen[4] or 0)
end

-- Leaves the free lock to Redisson's clients if it is their turn. The first waiter in the queue asks for it meanwhile,
-- and learns when that ends. ``now`` is in us.
local function is_left_to_guests(lock, queue, first, alive, channel, waiting, now)
    if now % 4 ~= 0 then
        return false
    end
    -- pcall: a user who may not read Redisson's keys or ask for subscribers gets an error.
    if not others_listen(channel) and redis.pcall('exists', waiting) ~= 1 then
        return false
    end
    redis.call('zadd', alive, math.floor(now / 1000) + GUESTS_MS, GUESTS)
    local client = string.sub(first, 1, 36)
    redis.pcall('publish', 'rlock_wake:' .. client, ' ' .. first .. ' ' .. lock)
    return true
end
