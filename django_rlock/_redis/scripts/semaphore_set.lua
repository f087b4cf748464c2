-- Sets the number of a semaphore's permits, unless it exists.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  channel
-- KEYS[3]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  permits
-- ARGV[4]  how long the request is remembered, ms
-- ARGV[5]  how long the semaphore lives, ms; 0 = without end
--
-- Returns the nonce, for 1, or {nonce, 0} when it exists.

-- include: counting

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[3], request) then
    return ARGV[1]
end
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
if redis.call('exists', KEYS[1]) == 1 then
    return {ARGV[1], 0}
end
redis.call('set', KEYS[1], ARGV[3])
if ARGV[5] ~= '0' then
    redis.call('pexpire', KEYS[1], ARGV[5])
end
remember(KEYS[3], request, ARGV[4], answered)
tell(KEYS[2], tonumber(ARGV[3]))
return ARGV[1]
