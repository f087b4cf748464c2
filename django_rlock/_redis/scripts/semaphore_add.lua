-- Changes the number of a semaphore's free permits, which may go below 0; its time to live does not change.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  channel
-- KEYS[3]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  permits to add; below 0 to take away
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns the nonce, for 1, or {nonce, -1} if the number would be too large, or too far below 0.

-- include: counting

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[3], request) then
    return ARGV[1]
end
local total = number_at(KEYS[1]) + ARGV[3]
if math.abs(total) > MOST then
    return {ARGV[1], -1}
end
remember(KEYS[3], request, ARGV[4], answered)
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], total)
return ARGV[1]
