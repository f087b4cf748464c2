-- Returns how many permits are free and taken, and the remaining lease of one of them.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- ARGV[1]  nonce
-- ARGV[2]  id, 16 bytes, or '' for none
--
-- Returns {nonce, left, taken, ms of that permit's lease: -2 when it is not taken, -1 when it has no end}.

-- include: permit_reclaim

local now = now_ms()
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now)
local ends = tonumber(redis.call('zscore', KEYS[2], ARGV[2]) or now - 2)
return {ARGV[1], number_at(KEYS[1]), redis.call('zcard', KEYS[2]), ends == NEVER and -1 or ends - now}
