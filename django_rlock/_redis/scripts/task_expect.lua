-- Records the pending copy of a task's message, unless another copy was recorded meanwhile.
--
-- KEYS[1]  the pending copy
-- ARGV[1]  nonce
-- ARGV[2]  the copy
-- ARGV[3]  its predecessor, '' for none
-- ARGV[4]  how long it is remembered, ms
--
-- Returns the nonce, for 1, or {nonce, 0} if another copy is recorded.

local known = redis.call('get', KEYS[1]) or ''
if known ~= ARGV[2] and known ~= ARGV[3] then
    return {ARGV[1], 0}
end
redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[4])
return ARGV[1]
