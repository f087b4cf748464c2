-- Reserves the key of a task's message, unless another message has it, or a run of that task has the lock.
--
-- KEYS[1]  the reservation: <token>:<task id>, a newline, the time when it was made in s, the start of its message in ms
--          or - once its run has begun, and a description; with ? before it until the message is sent
-- KEYS[2]  the lock: hash of owner -> holds
-- KEYS[3]  sorted set: the keys of the reservations of that lock -> when they were made, s
-- KEYS[4]  the former reservation: the reservation of the message to replace, until its replacement has been sent
-- KEYS[5]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request, and the reservation's value, without ? and what follows the newline, separated by a space
-- ARGV[3]  how long it is kept until the message is sent, ms
-- ARGV[4]  mark of the owners of the task's runs, or '' if runs do not count
-- ARGV[5]  its description
-- ARGV[6]  in how many ms the message will start
-- ARGV[7]  which waiting message it replaces: '' none, 'earlier' a message that will start later, 'replace' any
-- ARGV[8]  how long the request is remembered, ms
--
-- Returns {nonce, what is at the reservation's key, '', 0}; or {nonce, '', owner of a run, its remaining lease in ms}.

-- include: counting
-- include: move_reservation

local request, own = string.match(ARGV[2], '^(%S+) (.*)$')
if was_executed(KEYS[5], request) then  -- a late copy must not move the reservation of a newer message
    return {ARGV[1], redis.call('get', KEYS[1]) or '?' .. own, '', 0}
end
local starts = now_ms() + ARGV[6]
if redis.call('exists', KEYS[1]) == 0 and redis.call('exists', KEYS[4]) == 1 then
    move_reservation(KEYS[3], KEYS[4], KEYS[1])  -- the sender of its replacement has died
end
local known = redis.call('get', KEYS[1])
if known then
    -- The mark of a sender that died is kept for longer if the server's clock was set back meanwhile.
    if string.sub(known, 1, 1) == '?' and redis.call('pttl', KEYS[1]) > tonumber(ARGV[3]) then
        redis.call('pexpire', KEYS[1], ARGV[3])
    end
    local planned = tonumber(string.match(known, '^[^?][^\n]*\n%d+ (%d+) '))  -- nil unless it is sent and waits
    if not planned or not (ARGV[7] == 'replace' or ARGV[7] == 'earlier' and starts < planned) then
        return {ARGV[1], known, '', 0}
    end
end
if ARGV[4] ~= '' then
    for _, owner in ipairs(redis.call('hkeys', KEYS[2])) do
        if string.find(owner, ARGV[4], 1, true) then
            return {ARGV[1], '', owner, redis.call('pttl', KEYS[2])}
        end
    end
end
if known then
    move_reservation(KEYS[3], KEYS[1], KEYS[4])
end
remember(KEYS[5], request, ARGV[8])
local now = redis.call('time')[1]
local record = string.format('?%s\n%s %.0f %s', own, now, starts, ARGV[5])
redis.call('set', KEYS[1], record, 'px', ARGV[3])
redis.call('zadd', KEYS[3], now, KEYS[1])
if redis.call('pttl', KEYS[3]) < tonumber(ARGV[3]) then
    redis.call('pexpire', KEYS[3], ARGV[3])
end
return {ARGV[1], record, '', 0}
