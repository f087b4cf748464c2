-- Undoes an acquire with an unknown outcome: releases what it took; an acquire that arrives after this takes nothing.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  channel
-- KEYS[3]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  request of that acquire
-- ARGV[3]  permits that it should have taken
-- ARGV[4]  how long the request is remembered, ms
-- ARGV[5]  1 if it certainly took them, even if the request was forgotten since, otherwise 0
--
-- Returns the nonce, for 1 if permits were released, otherwise {nonce, 0}.

-- include: counting

local undone = ARGV[2] .. ':undone'
if was_executed(KEYS[3], undone) then
    return {ARGV[1], 0}
end
local left = number_at(KEYS[1])
local taken = ARGV[5] == '1' or was_executed(KEYS[3], ARGV[2])
remember(KEYS[3], ARGV[2], ARGV[4])
remember(KEYS[3], undone, ARGV[4])
-- A semaphore that was deleted meanwhile is not created again.
if not taken or redis.call('exists', KEYS[1]) == 0 then
    return {ARGV[1], 0}
end
redis.call('incrby', KEYS[1], ARGV[3])
tell(KEYS[2], left + ARGV[3])
return ARGV[1]
