-- Keeps a process's waiters alive, hands on a lock that fell free, and finds a wake-up that was lost.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  the process's longest waiting owner, as it stands in the queue
-- ARGV[3]  claim time, ms
-- ARGV[4]  alive time, ms
--
-- Returns {nonce, 1 if that waiter has its ticket or the lock, else 0, PTTL of the lock, {its owners}}.

-- include: fair_grant

local lock, queue, alive, member = KEYS[1], KEYS[2], KEYS[3], ARGV[2]

-- PEXPIRE first: it is allowed when memory is full, and after a write the ZADD is allowed too.
redis.call('pexpire', queue, ARGV[4] * 6)
redis.call('zadd', alive, now_ms() + ARGV[4], string.sub(member, 1, 36))
redis.call('pexpire', alive, ARGV[4] * 6)
local left = redis.call('pttl', lock)
if left == -2 and grant(lock, queue, alive, ARGV[3]) then
    left = tonumber(ARGV[3])
end
local owners = redis.call('hkeys', lock)
local known = redis.call('zscore', queue, member) and 1 or 0
for _, holder in ipairs(owners) do
    if holder == owner_of(member) then
        known = 1
    end
end
return {ARGV[1], known, left, owners}
