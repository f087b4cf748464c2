-- Deletes a latch and lets its waiters go.
--
-- KEYS[1]  count
-- ARGV[1]  nonce
-- ARGV[2]  channel; not in KEYS, since that of a name with a hash tag is in another slot of a cluster
--
-- Returns {nonce, 1}, or {nonce, 0} when it does not exist.

-- include: counting

number_at(KEYS[1]) -- an error, where the key is no latch
if redis.call('del', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
redis.pcall('publish', ARGV[2], '0')
return {ARGV[1], 1}
