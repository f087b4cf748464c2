-- Makes a request do nothing if it arrives late, whether or not it was executed before.
--
-- KEYS[1]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  how long it is remembered, ms
--
-- Returns the nonce, for 1.

-- include: counting

remember(KEYS[1], ARGV[2], ARGV[3])
return ARGV[1]
