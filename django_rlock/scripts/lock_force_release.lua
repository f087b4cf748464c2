-- Frees a lock whoever holds it, and lets the next one in.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner that must hold it, or '' for any
-- ARGV[3]  claim time, ms
--
-- Returns {nonce, 1}, or {nonce, 0} when nobody holds it, or not that owner.

-- include: fair_grant

local held
if ARGV[2] == '' then
    held = redis.call('hlen', KEYS[1]) -- an error, where the key is no lock
else
    held = redis.call('hexists', KEYS[1], ARGV[2])
end
if held == 0 then
    return {ARGV[1], 0}
end
hand_on(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[3])
return {ARGV[1], 1}
