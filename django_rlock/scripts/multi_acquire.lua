-- Takes several locks of one server at once, or none of them.
--
-- Four keys for each of n locks. Its place i counts from 1.
--
-- KEYS[i]      hash of owner -> holds
-- KEYS[n+i]    queue: member -> ticket
-- KEYS[2*n+i]  alive: client -> epoch ms
-- KEYS[3*n+i]  Redisson's channel, unused here
-- ARGV[1]  nonce
-- ARGV[2]  owner, who holds none of them but what was granted to it
-- ARGV[3]  lease, ms
-- ARGV[4]  claim time, ms
--
-- Returns {nonce, 'OK'}, or {nonce, PTTL of the first lock that is taken, the place of that lock}.

-- include: fair_grant
-- include: owns

local n = #KEYS / 4
local owner = ARGV[2]

-- The usual case costs one command: none is held, and nobody waits for any.
if redis.call('exists', unpack(KEYS, 1, 2 * n)) > 0 then
    for i = 1, n do
        local lock = KEYS[i]
        if redis.call('exists', lock) == 0 then
            grant(lock, KEYS[n + i], KEYS[2 * n + i], ARGV[4])
        end
        if redis.call('exists', lock) == 1 and not owns(lock, owner) then
            return {ARGV[1], redis.call('pttl', lock), i}
        end
    end
end
redis.call('hset', KEYS[1], owner, 1)
redis.call('pexpire', KEYS[1], ARGV[3])
for i = 2, n do
    -- The lease goes with it.
    redis.call('copy', KEYS[1], KEYS[i], 'replace')
end
return {ARGV[1], 'OK'}
