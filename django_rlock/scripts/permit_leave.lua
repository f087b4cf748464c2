-- Undoes an acquire whose outcome is unknown: gives back what it took; if it comes only now, it takes nothing.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  permits that are taken: id -> epoch ms
-- KEYS[3]  channel
-- KEYS[4]  requests that were undone
-- ARGV[1]  nonce
-- ARGV[2]  ids that it was to take, 16 bytes each
-- ARGV[3]  how long this is remembered, ms
--
-- Returns {nonce, how many permits were given back}.

-- include: permit_reclaim

number_at(KEYS[1]) -- an error, where the key is no semaphore
local ids, taken = ids_in(ARGV[2]), 0
remember(KEYS[4], ids[1], ARGV[3])
for _, id in ipairs(ids) do
    taken = taken + redis.call('zrem', KEYS[2], id)
end
if taken > 0 then
    tell(KEYS[3], redis.call('incrby', KEYS[1], taken))
end
return {ARGV[1], taken}
