-- Replaces publish_both if PUBLISH_TO_ALL is set, for clients of Redisson that subscribe at a replica, where scripts
-- cannot see them.
local function publish_both(channel, message)
    redis.pcall('spublish', channel, message)
    redis.pcall('publish', channel, '00' .. message)
end
