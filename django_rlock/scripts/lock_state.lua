-- Tells whether a lock is held, and how often by one owner.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns {nonce, holds of the owner, PTTL: -2 when the lock is free, -1 when it never expires}.

return {ARGV[1], tonumber(redis.call('hget', KEYS[1], ARGV[2])) or 0, redis.call('pttl', KEYS[1])}
