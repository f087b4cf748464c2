-- Records that a task has succeeded, or that its outcome is stored as well.
--
-- KEYS[1]  the success of the task: how often it had been retried by itself, after + once its outcome is stored; in
--          earlier versions the task id instead of the number
-- ARGV[1]  nonce
-- ARGV[2]  its value
-- ARGV[3]  how long it is remembered, ms
--
-- Returns {nonce, 1}.

-- A copy of the command for an earlier state may be executed after the command for a later state.
local function rank(value)
    local stored, retries = string.match(value, '^(%+?)(%d+)$')
    return retries and 2 * retries + #stored or -1
end

if rank(redis.call('get', KEYS[1]) or '') <= rank(ARGV[2]) then
    redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
end
return {ARGV[1], 1}
