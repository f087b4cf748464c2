-- Returns what is known of a task by its id.
--
-- KEYS[1]  whether it has succeeded
-- KEYS[2]  the copy of its message that is to come
-- ARGV[1]  nonce
--
-- Returns {nonce, how long its success is still remembered in ms, or -2 if it is not known to have succeeded, the copy
-- or '', 1 if its outcome was stored, else 0}.

local stored = string.sub(redis.call('get', KEYS[1]) or '', 1, 1) == '+'
return {ARGV[1], redis.call('pttl', KEYS[1]), redis.call('get', KEYS[2]) or '', stored and 1 or 0}
