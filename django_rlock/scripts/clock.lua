-- Included by other scripts, not called by itself.

local function now_ms()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
