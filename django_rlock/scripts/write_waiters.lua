-- Included by the read-write lock's scripts, not called on its own.

-- include: clock

-- How many ms longer a waiting writer keeps new readers out; 0 or less if none does.
local function kept_out_for(writers)
    local last = redis.call('zrange', writers, -1, -1, 'withscores')[2]
    return last and tonumber(last) - now_ms() or -1
end

local function keep_readers_out(writers, writer, alive_ms)
    redis.call('zadd', writers, now_ms() + alive_ms, writer)
    redis.call('pexpire', writers, alive_ms)
end

-- The readers that waited for the last of the waiting writers may go on.
local function let_readers_in(writers, writer, channel)
    if redis.call('zrem', writers, writer) == 1 and kept_out_for(writers) <= 0 then
        redis.pcall('publish', channel, '1')
    end
end
