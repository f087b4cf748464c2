-- Records that a task has succeeded, or that its outcome is stored as well.
--
-- KEYS[1]  whether it has succeeded
-- ARGV[1]  nonce
-- ARGV[2]  its value: the task id, after + once the outcome is stored
-- ARGV[3]  how long it is remembered, ms
--
-- Returns {nonce, 1}.

-- A copy of the first command may come after the second one.
if redis.call('get', KEYS[1]) ~= '+' .. ARGV[2] then
    redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
end
return {ARGV[1], 1}
