-- Replaces publish_both if PUBLISH_TO_ALL is set, for clients of Redisson that subscribe at a replica, where scripts
-- cannot see them.
local function publish_both(channel, message)
    local heard = redis.pcall('spublish', channel, message)
    local copies = redis.pcall('publish', channel, '00' .. message)
    return heard == 0 and copies or heard
end
