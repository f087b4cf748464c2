-- Ends an attempt whose outcome nobody wants any more: gives up the ticket, and the lock if it was granted.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner, as it stands in the queue
-- ARGV[3]  claim time, ms
--
-- Returns {nonce, 1} when the lock was given back, else {nonce, 0}.

-- include: fair_grant
-- include: owns

redis.call('zrem', KEYS[2], ARGV[2])
if not owns(KEYS[1], owner_of(ARGV[2])) then
    return {ARGV[1], 0}
end
hand_on(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[3])
return {ARGV[1], 1}
