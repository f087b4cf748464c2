-- Frees several locks of one server, each for its next waiter.
--
-- Four keys for each lock.
--
-- KEYS[4*i-3]  hash of owner -> holds
-- KEYS[4*i-2]  queue: member -> ticket
-- KEYS[4*i-1]  alive: client -> epoch ms
-- KEYS[4*i]    Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  claim time, ms
--
-- Returns {nonce, {1 or, where the owner does not hold that lock, 0}}.

-- include: fair_grant
-- include: owns

local freed = {}
for i = 1, #KEYS, 4 do
    local owned = owns(KEYS[i], ARGV[2])
    if owned then
        hand_on(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], ARGV[3])
    end
    freed[#freed + 1] = owned and 1 or 0
end
return {ARGV[1], freed}
