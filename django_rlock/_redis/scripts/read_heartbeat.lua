-- Finds a read-write lock that readers may enter earlier than they know.
-- Redisson's writer that becomes a reader sends no message, nor does DEL.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  waiting writers that go first: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  0 if readers overtake these writers
--
-- Returns {nonce, 0 if the readers should try again, otherwise 1, PTTL of the lock}.

-- include: clock

local left = redis.call('pttl', KEYS[1])
local may_enter = left == -2 or redis.call('hget', KEYS[1], 'mode') == 'read'
if may_enter and ARGV[2] ~= '0' then
    may_enter = tonumber(redis.call('zrange', KEYS[2], -1, -1, 'withscores')[2] or 0) <= now_ms()
end
return {ARGV[1], may_enter and 0 or 1, left}
