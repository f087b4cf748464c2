-- Adds the holder of a RedLock on a node that does not know the lock, so that the holder can lose another node.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  tombstone: exists if the owner has released already
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  its holds
-- ARGV[4]  lease, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when the lock is taken here, or was released meanwhile.

if redis.call('exists', KEYS[1], KEYS[2]) > 0 then
    return {ARGV[1], 0}
end
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
redis.call('pexpire', KEYS[1], ARGV[4])
return ARGV[1]
