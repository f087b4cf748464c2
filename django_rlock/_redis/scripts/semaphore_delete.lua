-- Deletes a semaphore of either kind.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  how long the request is remembered, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when it does not exist.

-- include: counting

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[3], request) then
    return ARGV[1]
end
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
redis.call('del', KEYS[2])
if redis.call('del', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
remember(KEYS[3], request, ARGV[3], answered)
return ARGV[1]
