-- Keeps the reservation of a task's message in the queue, or releases it.
--
-- If the message was sent, the message that it should replace counts as replaced from then on.
--
-- KEYS[1]  the reservation, as in task_queue
-- KEYS[2]  sorted set: the keys of the reservations of that lock -> when they were made or kept, s
-- KEYS[3]  the former reservation, as in task_queue
-- KEYS[4]  sorted set: messages of that lock that were replaced, <token>:<task id> -> until when that is remembered, s
-- ARGV[1]  nonce
-- ARGV[2]  the value that it must have, without ? and what follows the newline; or all that task_queue has returned, if
--          nothing may have changed it since
-- ARGV[3]  how long it is kept from now on, ms; 0 releases it; '' does neither
-- ARGV[4]  in how many ms the message will start; '-' if its run has begun; '?' if it was not sent
--
-- Returns {nonce, 1, '', replaced}; or {nonce, 0, the reservation's value or '', replaced} when it does not have that
-- value; replaced is 1 if another message has replaced this one, otherwise 0.

-- include: clock
-- include: move_reservation

local replaced = redis.call('zscore', KEYS[4], ARGV[2]) and 1 or 0
local reservation, known, value, since, planned, about
for _, key in ipairs({KEYS[1], KEYS[3]}) do
    known = redis.call('get', key) or ''
    value, since, planned, about = string.match(known, '^%??([^\n]*)\n(%d+) (%S+) (.*)$')
    if value == ARGV[2] or known == ARGV[2] then
        reservation = key
        break
    end
end
if not reservation or ARGV[3] == '' then
    return {ARGV[1], 0, known ~= '' and known or redis.call('get', KEYS[1]) or '', replaced}
end

local function forget(key)
    redis.call('del', key)
    redis.call('zrem', KEYS[2], key)
end

local function note_replaced(message, ms)
    local now = now_ms() / 1000
    redis.call('zremrangebyscore', KEYS[4], '-inf', now)
    redis.call('zadd', KEYS[4], now + ms / 1000, message)
    if redis.call('pttl', KEYS[4]) < ms then
        redis.call('pexpire', KEYS[4], ms)
    end
end

local former = reservation == KEYS[1] and redis.call('get', KEYS[3])
if former and ARGV[4] ~= '?' then
    local waits = string.match(former, '^([^\n]*)\n%d+ %d+ ')  -- nil if its run has begun
    if waits then
        note_replaced(waits, redis.call('pttl', KEYS[3]))
    end
    forget(KEYS[3])
end
if ARGV[3] == '0' then
    forget(reservation)
    if former and ARGV[4] == '?' then
        move_reservation(KEYS[2], KEYS[3], KEYS[1])
    end
else
    local starts = ARGV[4] == '-' and '-' or string.format('%.0f', now_ms() + ARGV[4])
    redis.call('set', reservation, string.format('%s\n%s %s %s', value, since, starts, about), 'px', ARGV[3])
    redis.call('zadd', KEYS[2], redis.call('time')[1], reservation)
    if redis.call('pttl', KEYS[2]) < tonumber(ARGV[3]) then
        redis.call('pexpire', KEYS[2], ARGV[3])
    end
end
return {ARGV[1], 1, '', replaced}
