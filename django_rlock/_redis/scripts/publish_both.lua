-- Before the scripts that publish, in a cluster only.

-- Publishes to the shard of a channel's slot, and a copy to all nodes if a client of Redisson's listens there, as all do
-- before 3.22. Ours listen there too, each with a mark beside it, and drop the copy, which they know by its zeros; for
-- Java it is the same number. Without the right to ask, nothing is copied.
local function publish_both(channel, message)
    redis.pcall('spublish', channel, message)
    local plain = redis.pcall('pubsub', 'numsub', channel)[2] or 0
    if plain > 0 and plain > (redis.pcall('pubsub', 'shardnumsub', 'rlock_wake::' .. channel)[2] or 0) then
        redis.pcall('publish', channel, '00' .. message)
    end
end
