-- Frees several locks of one server, each for its next waiter.
--
-- Four keys for each of n locks. Its place i counts from 1.
--
-- KEYS[i]      hash of owner -> holds
-- KEYS[n+i]    queue: member -> ticket
-- KEYS[2*n+i]  alive: client -> epoch ms
-- KEYS[3*n+i]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  claim time, ms
--
-- Returns {nonce, {1 or, where the owner does not hold that lock, 0}}.

-- include: fair_grant
-- include: owns

local n = #KEYS / 4
local freed, locks, queues = {}, {}, {}
for i = 1, n do
    local owned = owns(KEYS[i], ARGV[2])
    if owned then
        locks[#locks + 1] = KEYS[i]
        queues[#queues + 1] = KEYS[n + i]
    end
    freed[i] = owned and 1 or 0
end
if #locks == 0 then
    return {ARGV[1], freed}
end
redis.call('del', unpack(locks))
local queued = redis.call('exists', unpack(queues)) > 0
for i = 1, n do
    if freed[i] == 1 and not (queued and grant(KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[3])) then
        -- pcall: without the right to publish, waiters ask again by themselves.
        redis.pcall('publish', KEYS[3 * n + i], '0')
    end
end
return {ARGV[1], freed}
