-- Raises one node's token to the highest one that a RedLock's owner was given by its quorum.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  last token
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  that token
-- ARGV[4]  how long to keep the token after this, ms; 0 = forever
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock: without that check, an earlier owner
-- could get a higher token than a later one.

-- include: token

if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
    return {ARGV[1], 0}
end
if (tonumber(redis.call('get', KEYS[2])) or 0) < tonumber(ARGV[3]) then
    keep_token(KEYS[2], ARGV[3], ARGV[4])
end
return ARGV[1]
