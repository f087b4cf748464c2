-- In place of publish_both, with PUBLISH_TO_ALL: for clients of Redisson's that listen at a replica, where no script sees
-- them.
local function publish_both(channel, message)
    redis.pcall('spublish', channel, message)
    redis.pcall('publish', channel, '00' .. message)
end
