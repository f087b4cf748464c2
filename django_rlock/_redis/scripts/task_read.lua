-- Returns the record of a task.
--
-- KEYS[1]  the success of the task, as in task_done
-- KEYS[2]  the pending copy of its message
-- ARGV[1]  nonce
-- ARGV[2]  how often the task itself had retried when the reading message was sent
--
-- Returns {nonce, how long its success is still remembered in ms, or -2 if no success after that many retries or more
-- is known, the copy or '', 1 if what follows it is done as well, otherwise 0}.

local done, retries = string.match(redis.call('get', KEYS[1]) or '', '^(%+?)(.*)$')
local copy = redis.call('get', KEYS[2]) or ''
if (tonumber(retries) or math.huge) < tonumber(ARGV[2]) then
    return {ARGV[1], -2, copy, 0}
end
return {ARGV[1], redis.call('pttl', KEYS[1]), copy, done == '+' and 1 or 0}
