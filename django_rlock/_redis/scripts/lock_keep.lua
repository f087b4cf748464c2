-- Releases a lock, but keeps it taken for a while. Its former owner cannot take it during that time, either.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  Redisson's channel
-- KEYS[3]  queue of the fair lock: member -> ticket
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  how long it stays taken, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock.

-- include: owns

local kept = 'kept:' .. ARGV[2]
if redis.call('hexists', KEYS[1], kept) == 1 then
    return {ARGV[1], 1} -- an earlier copy of this command did it
end
if not owns(KEYS[1], ARGV[2]) then
    return {ARGV[1], 0}
end
local before = redis.call('pttl', KEYS[1])
-- PEXPIRE first (rule 5 of docs/architecture.md): a full server allows it, and after it the other writes.
redis.call('pexpire', KEYS[1], ARGV[3])
redis.call('hset', KEYS[1], kept, 1)
redis.call('hdel', KEYS[1], ARGV[2])
if before < 0 or before > tonumber(ARGV[3]) then
    -- Waiters sleep until the end of the lease that they know of. pcall: without the right to publish they still do.
    redis.pcall('publish', KEYS[2], '0')
    -- The first waiter in the queue tries to acquire it, and learns when that time ends.
    local lock, queue = KEYS[1], KEYS[3]
    local first = redis.call('zrange', queue, 0, 0)[1]
    if first then
        local client = string.sub(first, 1, 36)
        redis.pcall('publish', 'rlock_wake:' .. client, ' ' .. first .. ' ' .. lock)
    end
end
return {ARGV[1], 1}
