-- Takes the place of a task's message in the queue, unless another message has it, or a run of that task has the lock.
--
-- KEYS[1]  the place: <token>:<task id>, a newline and what it is about, with ? before it until the message is sent
-- KEYS[2]  the lock: hash of owner -> holds
-- KEYS[3]  sorted set: the keys of the places of that lock -> when they were taken, s
-- ARGV[1]  nonce
-- ARGV[2]  the place's value, without ? and what it is about
-- ARGV[3]  how long it is kept until the message is sent, ms
-- ARGV[4]  mark of the owners of the task's runs, or '' if runs do not count
-- ARGV[5]  what it is about, after the time at which it was taken, s
--
-- Returns {nonce, the value that it has, '', 0}; or {nonce, '', owner of a run, its remaining lease in ms}.

local known = redis.call('get', KEYS[1])
if known then
    -- The mark of a sender that died is kept for longer if the server's clock was set back meanwhile.
    if string.sub(known, 1, 1) == '?' and redis.call('pttl', KEYS[1]) > tonumber(ARGV[3]) then
        redis.call('pexpire', KEYS[1], ARGV[3])
    end
    return {ARGV[1], known, '', 0}
end
if ARGV[4] ~= '' then
    for _, owner in ipairs(redis.call('hkeys', KEYS[2])) do
        if string.find(owner, ARGV[4], 1, true) then
            return {ARGV[1], '', owner, redis.call('pttl', KEYS[2])}
        end
    end
end
local value = '?' .. ARGV[2]
local now = redis.call('time')[1]
redis.call('set', KEYS[1], value .. '\n' .. now .. ' ' .. ARGV[5], 'px', ARGV[3])
redis.call('zadd', KEYS[3], now, KEYS[1])
if redis.call('pttl', KEYS[3]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[3], ARGV[3])
end
return {ARGV[1], value, '', 0}
