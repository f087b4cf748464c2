-- Included by other scripts, not called on its own.

-- A copy of a command for an earlier state may be executed after the command for a later state.
local function rank(value)
    local done, retries = string.match(value, '^(%+?)(%d+)%.?%d*$')
    return retries and 2 * retries + #done or -1
end

-- Records a success of a task, unless a later state is known.
local function note_success(key, value, ms)
    if rank(redis.call('get', key) or '') <= rank(value) then
        redis.call('set', key, value, 'px', ms)
    end
end
