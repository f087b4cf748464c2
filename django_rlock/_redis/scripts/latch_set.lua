-- Closes a latch that is open.
--
-- KEYS[1]  count
-- KEYS[2]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  channel; not in KEYS: for a name with a hash tag it is in another slot of a cluster
-- ARGV[4]  count; 0 leaves it open
-- ARGV[5]  how long the request is remembered, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when it is closed already.

-- include: counting

if was_executed(KEYS[2], ARGV[2]) then
    return ARGV[1]
end
number_at(KEYS[1]) -- raises an error if the key is not a latch
if redis.call('exists', KEYS[1]) == 1 then
    return {ARGV[1], 0}
end
if ARGV[4] ~= '0' then
    redis.call('set', KEYS[1], ARGV[4])
    remember(KEYS[2], ARGV[2], ARGV[5])
    redis.pcall('publish', ARGV[3], '1')
end
return ARGV[1]
