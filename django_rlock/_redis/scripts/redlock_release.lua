-- Releases one hold of a RedLock on one node; the last one frees it, and earlier commands cannot take it again.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  Redisson's channel
-- KEYS[3]  tombstone of the owner
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 frees the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
-- ARGV[5]  how long an attempt of this owner that arrives late is refused, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock.

-- include: lease

local held = redis.call('hexists', KEYS[1], ARGV[2])
if ARGV[3] ~= '0' then
    if held == 1 then
        -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
        redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[4]))
        redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    end
    return {ARGV[1], held}
end
if held == 1 then
    redis.call('del', KEYS[1])
    -- pcall: without the right to publish, waiters retry by themselves.
    redis.pcall('publish', KEYS[2], '0')
end
-- pcall: if memory is full, a late attempt ends with its lease. A release that arrives late shortens no refusal.
if not redis.pcall('set', KEYS[3], '', 'px', ARGV[5], 'nx') then
    redis.call('pexpire', KEYS[3], no_shorter(KEYS[3], ARGV[5]))
end
return {ARGV[1], held}
