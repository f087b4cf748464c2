-- Undoes an acquire whose outcome is unknown: gives back what it took; if it comes only now, it takes nothing.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  channel
-- KEYS[3]  requests that were obeyed
-- ARGV[1]  nonce
-- ARGV[2]  request of that acquire
-- ARGV[3]  permits that it was to take
-- ARGV[4]  how long the request is remembered, ms
--
-- Returns {nonce, 1} when permits were given back, else {nonce, 0}.

-- include: counting

local undone = ARGV[2] .. ':undone'
if was_obeyed(KEYS[3], undone) then
    return {ARGV[1], 0}
end
local left = number_at(KEYS[1])
local taken = was_obeyed(KEYS[3], ARGV[2])
remember(KEYS[3], ARGV[2], ARGV[4])
remember(KEYS[3], undone, ARGV[4])
-- A semaphore that was deleted meanwhile does not come back.
if not taken or redis.call('exists', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], left + ARGV[3])
return {ARGV[1], 1}
