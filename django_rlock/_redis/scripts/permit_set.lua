-- Sets the number of all permits of an expirable semaphore; taken ones stay taken, and the free ones may go below 0.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- KEYS[4]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and confirmed ones to forget, separated by spaces
-- ARGV[3]  permits
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns the nonce, for 1.

-- include: permit_reclaim

local request, answered = requests_in(ARGV[2])

if was_executed(KEYS[4], request) then
    return ARGV[1]
end
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now_ms())
redis.call('incrby', KEYS[1], ARGV[3] - number_at(KEYS[1]) - redis.call('zcard', KEYS[2]))
remember(KEYS[4], request, ARGV[4], answered)
tell(KEYS[3], tonumber(ARGV[3]))
return ARGV[1]
