-- Gives an expirable semaphore a number of permits in all; those that are taken stay so, what is left may go below 0.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  permits that are taken: id -> epoch ms
-- KEYS[3]  channel
-- ARGV[1]  nonce
-- ARGV[2]  permits
--
-- Returns {nonce, 1}.

-- include: permit_reclaim

number_at(KEYS[1]) -- an error, where the key is no semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now_ms())
redis.call('incrby', KEYS[1], ARGV[2] - number_at(KEYS[1]) - redis.call('zcard', KEYS[2]))
tell(KEYS[3], tonumber(ARGV[2]))
return {ARGV[1], 1}
