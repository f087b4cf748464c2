-- Included by the scripts of semaphores and latches, not called by itself.

local MOST = 2147483647

-- include: clock

-- The number at a key, 0 where there is none.
local function number_at(key)
    local text = redis.call('get', key) or '0'
    if not string.find(text, '^-?%d+$') then
        error('WRONGTYPE the value is not an integer')
    end
    return tonumber(text)
end

-- A request that was obeyed is remembered for a while, so that nothing happens twice when its command comes again
-- because the reply was lost.
local function was_obeyed(requests, request)
    return redis.call('zscore', requests, request)
end

-- Forgetting comes first: it is a write that is allowed when memory is full, and after it all are.
local function remember(requests, request, keep_ms)
    local now = now_ms()
    redis.call('zremrangebyscore', requests, '-inf', now)
    redis.call('zadd', requests, now + keep_ms, request)
    redis.call('pexpire', requests, keep_ms)
end

-- Wakes the waiters of a semaphore. Never with less than 1: nobody can take that, and a Java subscriber fails on a
-- negative number.
local function tell(channel, permits)
    if permits > 0 then
        redis.pcall('publish', channel, permits)
    end
end
