-- Undoes an acquire with an unknown outcome: releases what it took; an acquire that arrives after this takes nothing.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- KEYS[4]  requests that were undone, or must not be executed again
-- ARGV[1]  nonce
-- ARGV[2]  ids that it was to take, 16 bytes each
-- ARGV[3]  how long this is remembered, ms
--
-- Returns {nonce, how many permits were released}.

-- include: permit_reclaim

number_at(KEYS[1]) -- raises an error if the key is not a semaphore
local ids, taken = ids_in(ARGV[2]), 0
remember(KEYS[4], ids[1], ARGV[3])
for _, id in ipairs(ids) do
    taken = taken + redis.call('zrem', KEYS[2], id)
end
if taken > 0 then
    tell(KEYS[3], redis.call('incrby', KEYS[1], taken))
end
return {ARGV[1], taken}
