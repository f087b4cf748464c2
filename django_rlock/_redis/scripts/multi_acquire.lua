-- Takes several locks of one server at once, or none of them.
--
-- Two keys for each of n locks. Their positions i count from 1.
--
-- KEYS[i]      hash of owner -> holds
-- KEYS[n+i]    queue: member -> ticket
-- ARGV[1]  nonce
-- ARGV[2]  owner, which holds none of these locks except granted ones
-- ARGV[3]  lease, ms
--
-- Returns {nonce, 'OK'}; {nonce, PTTL of the first taken lock, the position of that lock}; or {nonce, 'QUEUED'} if a
-- lock before it is free but has waiters in its queue: acquiring that lock alone then grants it to its first waiter.

-- include: lease
-- include: owns

local n = #KEYS / 2
local owner, lease = ARGV[2], ARGV[3]

-- The usual case costs one command: none is held, and none has waiters.
if redis.call('exists', unpack(KEYS)) > 0 then
    for i = 1, n do
        local lock = KEYS[i]
        if owns(lock, owner) then
            lease = no_shorter(lock, lease) -- granted, or this is a repeated command
        elseif redis.call('exists', lock) == 1 then
            return {ARGV[1], redis.call('pttl', lock), i}
        elseif redis.call('exists', KEYS[n + i]) == 1 then
            return {ARGV[1], 'QUEUED'}
        end
    end
end
redis.call('hset', KEYS[1], owner, 1)
redis.call('pexpire', KEYS[1], lease)
for i = 2, n do
    -- The lease is removed with it.
    redis.call('copy', KEYS[1], KEYS[i], 'replace')
end
return {ARGV[1], 'OK'}
