-- Tells how many permits a semaphore has left, or how far a latch still has to count.
--
-- KEYS[1]  the number
-- ARGV[1]  nonce
--
-- Returns {nonce, number}; 0 where there is none.

-- include: counting

return {ARGV[1], number_at(KEYS[1])}
