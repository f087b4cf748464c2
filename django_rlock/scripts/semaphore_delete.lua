-- Deletes a semaphore of either kind.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  permits that are taken: id -> epoch ms
-- ARGV[1]  nonce
--
-- Returns {nonce, 1}, or {nonce, 0} when it does not exist.

-- include: counting

number_at(KEYS[1]) -- an error, where the key is no semaphore
redis.call('del', KEYS[2])
return {ARGV[1], redis.call('del', KEYS[1])}
