-- Changes how many permits a semaphore has left, which may go below 0; its time to live stays.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  channel
-- KEYS[3]  requests that were obeyed
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  permits to add; below 0 to take away
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns {nonce, 1}, or {nonce, -1} when it would have too many, or too many too few.

-- include: counting

if was_obeyed(KEYS[3], ARGV[2]) then
    return {ARGV[1], 1}
end
local total = number_at(KEYS[1]) + ARGV[3]
if math.abs(total) > MOST then
    return {ARGV[1], -1}
end
remember(KEYS[3], ARGV[2], ARGV[4])
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], total)
return {ARGV[1], 1}
