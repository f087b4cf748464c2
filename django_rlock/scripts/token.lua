-- Included by the scripts of locks with a fencing token, not called by itself.

-- Keeps a token for ttl_ms after this; '0' = for ever.
local function keep_token(key, token, ttl_ms)
    if ttl_ms == '0' then
        redis.call('set', key, token)
    else
        redis.call('set', key, token, 'px', ttl_ms)
    end
end

-- A counter alone would start again where the server lost its data; the clock goes on.
local function next_token(key, ttl_ms)
    local time = redis.call('time')
    local token = math.max(time[1] * 1000000 + time[2], (tonumber(redis.call('get', key)) or 0) + 1)
    -- 17 digits: tostring() would round the token to 14.
    keep_token(key, string.format('%.0f', token), ttl_ms)
    return token
end
