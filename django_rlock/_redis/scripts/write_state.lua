-- Returns whether a read-write lock is held for writing, and how often by one owner.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns {nonce, holds of the owner, PTTL: -2 if there is no writer, -1 when it never expires}.

if redis.call('hget', KEYS[1], 'mode') ~= 'write' then
    return {ARGV[1], 0, -2}
end
local count = tonumber(redis.call('hget', KEYS[1], ARGV[2] .. ':write')) or 0
return {ARGV[1], count, redis.call('pttl', KEYS[1])}
