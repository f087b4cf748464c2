-- Included by the scripts of semaphores and latches, not called on its own.

local MOST = 2147483647

-- include: clock

-- The number at a key, 0 if the key does not exist.
local function number_at(key)
    local text = redis.call('get', key) or '0'
    if not string.find(text, '^-?%d+$') then
        error('WRONGTYPE the value is not an integer')
    end
    return tonumber(text)
end

-- An executed request is remembered for a while, so that it is not executed again when its command is repeated because
-- the reply was lost.
local function was_executed(requests, request)
    return redis.call('zscore', requests, request)
end

-- A request, followed by the confirmed requests of its process, which it will never repeat.
local function requests_in(text)
    local answered = {}
    for request in string.gmatch(text, '%S+') do
        answered[#answered + 1] = request
    end
    return table.remove(answered, 1), answered
end

-- ZREM even if there is nothing to forget: a full server allows this write, and after it all other writes of the script.
local function forget(requests, names)
    redis.call('zrem', requests, '', unpack(names))
end

-- Forgets the confirmed requests, and some old ones: not all, because there may be many after a busy time.
local function remember(requests, request, keep_ms, answered)
    local now = now_ms()
    local forgotten = redis.call('zrange', requests, '-inf', now, 'byscore', 'limit', 0, 100)
    for _, name in ipairs(answered or {}) do
        forgotten[#forgotten + 1] = name
    end
    forget(requests, forgotten)
    redis.call('zadd', requests, now + keep_ms, request)
    redis.call('pexpire', requests, keep_ms)
end

-- Wakes the waiters of a semaphore. Never publishes less than 1: no client could take so few permits, and a Java
-- subscriber fails on a negative number.
local function tell(channel, permits)
    if permits > 0 then
        redis.pcall('publish', channel, permits)
    end
end
