-- Takes Redisson's plain lock for a waiter, or joins the queue of Redisson's fair lock if a Java client holds it.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue of Redisson's fair lock
-- KEYS[3]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1
-- ARGV[4]  lease, ms
--
-- Returns the nonce, for OK; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, PTTL, 1 if a Java client
-- holds it, else 0, ''}.

-- include: java_queue

local function acquire()
-- include: rlock_acquire
end

return with_javas(acquire(), KEYS[1], KEYS[2], KEYS[3])
