-- Takes all permits that a semaphore has left, or clears what it is short of; its time to live stays.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  what this request took, if it comes again
-- ARGV[1]  nonce
-- ARGV[2]  how long that is remembered, ms
--
-- Returns {nonce, permits taken}; below 0 where the semaphore was short of them.

-- include: counting

local taken = redis.call('get', KEYS[2])
if taken then
    return {ARGV[1], tonumber(taken)}
end
local left = number_at(KEYS[1])
if left ~= 0 then
    redis.call('decrby', KEYS[1], left)
    redis.call('set', KEYS[2], left, 'px', ARGV[2])
end
return {ARGV[1], left}
