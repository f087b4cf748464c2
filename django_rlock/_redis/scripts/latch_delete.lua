-- Deletes a latch and releases its waiters.
--
-- KEYS[1]  count
-- KEYS[2]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  channel; not in KEYS: for a name with a hash tag it is in another slot of a cluster
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when it does not exist.

-- include: counting

if was_executed(KEYS[2], ARGV[2]) then
    return ARGV[1]
end
number_at(KEYS[1]) -- raises an error if the key is not a latch
if redis.call('del', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
remember(KEYS[2], ARGV[2], ARGV[4])
redis.pcall('publish', ARGV[3], '0')
return ARGV[1]
