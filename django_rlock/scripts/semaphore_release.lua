-- Gives permits to a semaphore and wakes its waiters.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  channel
-- KEYS[3]  requests that were obeyed
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  permits to give, 1 or more
-- ARGV[4]  how long the request is remembered, ms
-- ARGV[5]  1 leaves a semaphore alone that does not exist, 0 creates it
--
-- Returns {nonce, 1}; {nonce, 0} when it does not exist and is left alone; or {nonce, -1} when it would have too many.

-- include: counting

if was_obeyed(KEYS[3], ARGV[2]) then
    return {ARGV[1], 1}
end
if ARGV[5] == '1' and redis.call('exists', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
local total = number_at(KEYS[1]) + ARGV[3]
if total > MOST then
    return {ARGV[1], -1}
end
remember(KEYS[3], ARGV[2], ARGV[4])
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], total)
return {ARGV[1], 1}
