-- Takes permits of a semaphore, all or none.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  permits to take, 1 or more
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns the nonce, for OK, or {nonce, -1} if not enough are free.

-- include: counting

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[2], request) then
    return ARGV[1]
end
if number_at(KEYS[1]) < tonumber(ARGV[3]) then
    if #answered > 0 then
        forget(KEYS[2], answered)
    end
    return {ARGV[1], -1}
end
-- First, as a slot that is being moved between nodes refuses it, after the last old request is forgotten.
remember(KEYS[2], request, ARGV[4], answered)
redis.call('decrby', KEYS[1], ARGV[3])
return ARGV[1]
