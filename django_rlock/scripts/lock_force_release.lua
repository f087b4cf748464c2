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
redis.call('del', KEYS[1])
if not grant(KEYS[1], KEYS[2], KEYS[3], ARGV[3]) then
    redis.call('publish', KEYS[4], '0')
end
return {ARGV[1], 1}
