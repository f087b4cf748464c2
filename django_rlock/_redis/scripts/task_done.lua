-- Records that a task has succeeded, or that its outcome is stored as well; or forgets the success of one run.
--
-- KEYS[1]  the success of the task: how often it had been retried by itself, a point and the number of the run, after +
--          once its outcome is stored; in earlier versions no point and no number, or the task id instead
-- ARGV[1]  nonce
-- ARGV[2]  its value
-- ARGV[3]  how long it is remembered, ms; 0 forgets it, if it still has this value
--
-- Returns {nonce, 1}.

-- A copy of the command for an earlier state may be executed after the command for a later state.
local function rank(value)
    local stored, retries = string.match(value, '^(%+?)(%d+)%.?%d*$')
    return retries and 2 * retries + #stored or -1
end

local known = redis.call('get', KEYS[1]) or ''
if ARGV[3] == '0' then
    if known == ARGV[2] then
        redis.call('del', KEYS[1])
    end
elseif rank(known) <= rank(ARGV[2]) then
    redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
end
return {ARGV[1], 1}
