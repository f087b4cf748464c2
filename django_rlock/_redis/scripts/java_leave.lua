-- Removes the entry of our waiters from the queue of Redisson's fair lock.
-- If the lock is free, the next waiter is notified, because the message may have gone to the entry.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  Redisson's channel
-- KEYS[3]  queue of Redisson's fair lock
-- KEYS[4]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
--
-- Returns the nonce, for 1, or {nonce, 0} if there was no entry.

-- include: announce
-- include: java_queue

if not leave_javas(KEYS[3], KEYS[4]) then
    return {ARGV[1], 0}
end
if redis.call('exists', KEYS[1]) == 0 then
    announce(KEYS[2], KEYS[3], KEYS[4])
end
return ARGV[1]
