-- Returns whether a lock is held, and how often by one owner.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns {nonce, holds of the owner, PTTL: -2 when the lock is free, -1 when it never expires}.

-- A read-write lock's hash has a mode; there the field is the share of a reader.
local found = redis.call('hmget', KEYS[1], ARGV[2], 'mode')
return {ARGV[1], not found[2] and tonumber(found[1]) or 0, redis.call('pttl', KEYS[1])}
