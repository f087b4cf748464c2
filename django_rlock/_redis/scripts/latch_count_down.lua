-- Counts a latch down by one; at 0 it opens and releases its waiters.
--
-- KEYS[1]  count
-- KEYS[2]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  channel; not in KEYS: for a name with a hash tag it is in another slot of a cluster
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns {nonce, remaining count}.

-- include: counting

local count = number_at(KEYS[1])
if was_executed(KEYS[2], ARGV[2]) or redis.call('exists', KEYS[1]) == 0 then
    return {ARGV[1], count}
end
remember(KEYS[2], ARGV[2], ARGV[4])
if count > 1 then
    return {ARGV[1], redis.call('decr', KEYS[1])}
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[3], '0')
return {ARGV[1], 0}
