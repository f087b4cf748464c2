-- Returns how many free permits a semaphore has, or the remaining count of a latch.
--
-- KEYS[1]  the number
-- ARGV[1]  nonce
--
-- Returns {nonce, number}; 0 if the key does not exist.

-- include: counting

return {ARGV[1], number_at(KEYS[1])}
