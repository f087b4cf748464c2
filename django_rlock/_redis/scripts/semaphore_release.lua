-- Adds free permits to a semaphore and wakes its waiters.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  channel
-- KEYS[3]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  permits to release, 1 or more
-- ARGV[4]  how long the request is remembered, ms
-- ARGV[5]  1 does nothing if the semaphore does not exist, 0 creates it
--
-- Returns the nonce, for 1; {nonce, 0} if it does not exist and was not created; or {nonce, -1} if it would have too
-- many.

-- include: counting

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[3], request) then
    return ARGV[1]
end
if ARGV[5] == '1' and redis.call('exists', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
local total = number_at(KEYS[1]) + ARGV[3]
if total > MOST then
    return {ARGV[1], -1}
end
remember(KEYS[3], request, ARGV[4], answered)
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], total)
return ARGV[1]
