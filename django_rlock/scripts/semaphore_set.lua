-- Gives a semaphore its permits, unless it exists.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  channel
-- KEYS[3]  requests that were obeyed
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  permits
-- ARGV[4]  how long the request is remembered, ms
-- ARGV[5]  how long the semaphore lives, ms; 0 = without end
--
-- Returns {nonce, 1}, or {nonce, 0} when it exists.

-- include: counting

if was_obeyed(KEYS[3], ARGV[2]) then
    return {ARGV[1], 1}
end
number_at(KEYS[1]) -- an error, where the key is no semaphore
if redis.call('exists', KEYS[1]) == 1 then
    return {ARGV[1], 0}
end
redis.call('set', KEYS[1], ARGV[3])
if ARGV[5] ~= '0' then
    redis.call('pexpire', KEYS[1], ARGV[5])
end
remember(KEYS[3], ARGV[2], ARGV[4])
tell(KEYS[2], tonumber(ARGV[3]))
return {ARGV[1], 1}
