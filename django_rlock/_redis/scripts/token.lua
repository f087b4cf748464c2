-- Included by the scripts of locks with a fencing token, not called on its own.

-- include: clock

-- Keeps a token for another ttl_ms; '0' = forever.
local function keep_token(key, token, ttl_ms)
    if ttl_ms == '0' then
        redis.call('set', key, token)
    else
        redis.call('set', key, token, 'px', ttl_ms)
    end
end

-- How far a proposed token may be ahead of the server's clock, us: a client with a wrong estimate must not raise the
-- counter years ahead of the clock, or beyond the range in which Lua's numbers are exact.
local AHEAD = 100000

-- Draws a token; returns it, and the clock. A counter alone would restart if the server lost its data, but the clock
-- continues. A client's proposal is accepted if it is higher than both, but only slightly ahead of the clock.
local function next_token(key, ttl_ms, proposal)
    local now = now_us()
    local token = math.max(now, (tonumber(redis.call('get', key)) or 0) + 1)
    local proposed = math.floor(tonumber(proposal or '') or 0)
    if token < proposed and proposed <= now + AHEAD then
        token = proposed
    end
    -- 17 digits: tostring() would round the token to 14.
    keep_token(key, string.format('%.0f', token), ttl_ms)
    return token, now
end
