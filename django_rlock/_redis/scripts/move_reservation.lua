-- Included by other scripts, not called on its own.

-- Moves a reservation, with its TTL, to another key among the reservations of the same lock.
local function move_reservation(reservations, from, to)
    redis.call('set', to, redis.call('get', from), 'px', math.max(redis.call('pttl', from), 1))
    redis.call('del', from)
    redis.call('zrem', reservations, from)
    redis.call('zadd', reservations, redis.call('time')[1], to)
end
