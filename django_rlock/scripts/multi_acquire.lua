-- Takes several locks of one server at once, or none of them.
--
-- Four keys for each lock, and its place in the line counts from 1.
--
-- KEYS[4*i-3]  hash of owner -> holds
-- KEYS[4*i-2]  queue: member -> ticket
-- KEYS[4*i-1]  alive: client -> epoch ms
-- KEYS[4*i]    Redisson's channel, unused here
-- ARGV[1]  nonce
-- ARGV[2]  owner, who holds none of them but what was granted to it
-- ARGV[3]  lease, ms
-- ARGV[4]  claim time, ms
--
-- Returns {nonce, 'OK'}, or {nonce, PTTL of the first lock that is taken, the place of that lock}.

-- include: fair_grant
-- include: owns

local owner = ARGV[2]
local locks, queues = {}, {}
for i = 1, #KEYS, 4 do
    locks[#locks + 1] = KEYS[i]
    queues[#queues + 1] = KEYS[i + 1]
end

-- The usual case costs two commands: none is held, and nobody waits for any.
if redis.call('exists', unpack(locks)) > 0 or redis.call('exists', unpack(queues)) > 0 then
    for place, lock in ipairs(locks) do
        local i = 4 * place - 3
        if redis.call('exists', lock) == 0 then
            grant(lock, queues[place], KEYS[i + 2], ARGV[4])
        end
        if redis.call('exists', lock) == 1 and not owns(lock, owner) then
            return {ARGV[1], redis.call('pttl', lock), place}
        end
    end
end
for _, lock in ipairs(locks) do
    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, ARGV[3])
end
return {ARGV[1], 'OK'}
