-- Included by other scripts, not called on its own.

-- How many clients subscribe to a channel of Redisson's, without those that subscribe to a pattern. pcall: 0 without the
-- right to count.
local function listeners(channel)
    local seen = redis.pcall('pubsub', 'numsub', channel)
    return seen[2] or 0
end
