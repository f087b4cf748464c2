-- Prepended to the scripts that publish, only in a cluster.

-- Publishes to the shard of a channel's slot, and a copy to all nodes if a client of Redisson subscribes there, as all
-- clients before 3.22 do. Our processes subscribe there too, each with a mark, and drop the copy, which they recognize
-- by its leading zeros; for Java it is the same number. Without the right to count subscribers, nothing is copied.
-- Returns 0 if nobody has received it.
local function publish_both(channel, message)
    local heard = redis.pcall('spublish', channel, message)
    local plain = redis.pcall('pubsub', 'numsub', channel)[2] or 0
    if plain > 0 and plain > (redis.pcall('pubsub', 'shardnumsub', 'rlock_wake::' .. channel)[2] or 0) then
        local copies = redis.pcall('publish', channel, '00' .. message)
        return heard == 0 and copies or heard
    end
    return heard
end
