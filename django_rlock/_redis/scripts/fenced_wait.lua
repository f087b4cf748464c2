-- Takes Redisson's fenced lock for a waiter, or joins the queue of Redisson's fair lock if a Java client holds it.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  last token
-- KEYS[3]  queue of Redisson's fair lock
-- KEYS[4]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1
-- ARGV[4]  lease, ms
-- ARGV[5]  how long to keep the token after this, ms; 0 = forever
-- ARGV[6]  1 if other processes may hold it as the same owner, with the same token; else 0
--
-- Returns {nonce, 'OK', token}; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, PTTL, 1 if a Java client
-- holds it, else 0, ''}.

-- include: java_queue

local function acquire()
-- include: fenced_acquire
end

return with_javas(acquire(), KEYS[1], KEYS[3], KEYS[4])
