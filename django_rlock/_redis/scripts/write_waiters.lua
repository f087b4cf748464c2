-- Included by the read-write lock's scripts, not called on its own.

-- include: clock

-- For how many ms waiting writers still keep new readers out; 0 or less if there are none. No mark may be more than
-- most_ms in the future: after a fast clock was corrected, such marks are set back, because their writers may be dead.
-- pcall: a full server refuses that.
local function kept_out_for(writers, most_ms)
    local last = redis.call('zrange', writers, -1, -1, 'withscores')[2]
    if not last then
        return -1
    end
    local now = now_ms()
    if tonumber(last) - now > most_ms then
        for _, writer in ipairs(redis.call('zrange', writers, now + most_ms, '+inf', 'byscore')) do
            redis.pcall('zadd', writers, now + most_ms, writer)
        end
    end
    return math.min(tonumber(last) - now, most_ms)
end

local function keep_readers_out(writers, writer, alive_ms)
    redis.call('zadd', writers, now_ms() + alive_ms, writer)
    redis.call('pexpire', writers, alive_ms)
end

-- After the last waiting writer has gone, the readers that waited for it may continue.
local function let_readers_in(writers, writer, channel)
    if redis.call('zrem', writers, writer) == 1 and kept_out_for(writers, math.huge) <= 0 then
        redis.pcall('publish', channel, '1')
    end
end
