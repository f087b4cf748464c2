-- Releases permits by their ids, all or none, and wakes waiters.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- ARGV[1]  nonce
-- ARGV[2]  ids, 16 bytes each
--
-- Returns {nonce, how many}, or {nonce, 0} when one of them is not taken, or its lease has ended.

-- include: permit_reclaim

local ids = ids_in(ARGV[2])
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now_ms())
for _, id in ipairs(ids) do
    if not redis.call('zscore', KEYS[2], id) then
        return {ARGV[1], 0}
    end
end
for _, id in ipairs(ids) do
    redis.call('zrem', KEYS[2], id)
end
local total = redis.call('incrby', KEYS[1], #ids)
-- Redisson publishes the total for one permit, and the number of released ones for several.
tell(KEYS[3], #ids == 1 and total or #ids)
return {ARGV[1], #ids}
