-- Takes all free permits of a semaphore, or resets a negative number to 0; its time to live does not change.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  number of permits that this request took, in case it is repeated
-- KEYS[3]  executed requests, and abandoned ones
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  how long that number is remembered, ms
--
-- Returns {nonce, permits taken}; the negative number that was reset.

-- include: counting

local taken = redis.call('get', KEYS[2])
if taken then
    return {ARGV[1], tonumber(taken)}
end
if was_executed(KEYS[3], ARGV[2]) then
    return {ARGV[1], 0}
end
local left = number_at(KEYS[1])
if left ~= 0 then
    redis.call('decrby', KEYS[1], left)
end
redis.call('set', KEYS[2], left, 'px', ARGV[3])
return {ARGV[1], left}
