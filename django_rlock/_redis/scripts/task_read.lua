-- Returns what is known of a task by its id.
--
-- KEYS[1]  the success of the task, as in task_done
-- KEYS[2]  the copy of its message that is to come
-- ARGV[1]  nonce
-- ARGV[2]  how often the task had been retried by itself when the asking message was sent
--
-- Returns {nonce, how long its success is still remembered in ms, or -2 if it is not known to have succeeded after so
-- many retries or more, the copy or '', 1 if its outcome was stored, else 0}.

local stored, retries = string.match(redis.call('get', KEYS[1]) or '', '^(%+?)(.*)$')
local copy = redis.call('get', KEYS[2]) or ''
if (tonumber(retries) or math.huge) < tonumber(ARGV[2]) then
    return {ARGV[1], -2, copy, 0}
end
return {ARGV[1], redis.call('pttl', KEYS[1]), copy, stored == '+' and 1 or 0}
