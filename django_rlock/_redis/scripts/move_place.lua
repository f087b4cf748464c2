-- Included by other scripts, not called on its own.

-- Moves a place, with its TTL, to another key among the places of the same lock.
local function move_place(places, from, to)
    redis.call('set', to, redis.call('get', from), 'px', math.max(redis.call('pttl', from), 1))
    redis.call('del', from)
    redis.call('zrem', places, from)
    redis.call('zadd', places, redis.call('time')[1], to)
end
