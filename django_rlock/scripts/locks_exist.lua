-- Returns whether n locks are all held, by one command for all of them.
--
-- KEYS[i]  the key of lock i
-- ARGV[1]  nonce
--
-- Returns {nonce, 1} when all exist, else {nonce, 0}.

local n = #KEYS
return {ARGV[1], redis.call('exists', unpack(KEYS)) == n and 1 or 0}
