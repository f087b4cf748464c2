-- Records that the body of a task has succeeded, or forgets that success of one run.
--
-- KEYS[1]  the success of the task: how often it had been retried by itself, a point and the number of the run, after +
--          once what follows the body is done; in earlier versions no point and no number, or the task id instead
-- ARGV[1]  nonce
-- ARGV[2]  its value
-- ARGV[3]  how long it is remembered, ms; 0 forgets it, if it still has this value
--
-- Returns the nonce, for 1.

-- include: note_success

if ARGV[3] ~= '0' then
    note_success(KEYS[1], ARGV[2], ARGV[3])
elseif redis.call('get', KEYS[1]) == ARGV[2] then
    redis.call('del', KEYS[1])
end
return ARGV[1]
