-- Takes permits of a semaphore, all or none.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  requests that were obeyed
-- ARGV[1]  nonce
-- ARGV[2]  request
-- ARGV[3]  permits to take, 1 or more
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns {nonce, 'OK'}, or {nonce, -1} when there are not as many.

-- include: counting

if was_obeyed(KEYS[2], ARGV[2]) then
    return {ARGV[1], 'OK'}
end
if number_at(KEYS[1]) < tonumber(ARGV[3]) then
    return {ARGV[1], -1}
end
redis.call('decrby', KEYS[1], ARGV[3])
remember(KEYS[2], ARGV[2], ARGV[4])
return {ARGV[1], 'OK'}
