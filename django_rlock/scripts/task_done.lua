-- Records that a task has succeeded.
--
-- KEYS[1]  whether it has succeeded
-- ARGV[1]  nonce
-- ARGV[2]  task id, as its value
-- ARGV[3]  how long it is remembered, ms
--
-- Returns {nonce, 1}.

redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
return {ARGV[1], 1}
