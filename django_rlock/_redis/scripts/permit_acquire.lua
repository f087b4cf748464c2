-- Takes permits that have ids and a lease, all or none.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- KEYS[4]  requests that were undone, or must not be executed again
-- ARGV[1]  nonce
-- ARGV[2]  ids for the permits to take, 16 bytes each
-- ARGV[3]  lease, ms; 0 = without end
--
-- Returns the nonce, for OK; or, if not enough are free, {nonce, ms until a lease ends, or -1 if none does}.

-- include: permit_reclaim

local ids, now = ids_in(ARGV[2]), now_ms()

local function lease_out()
    for _, id in ipairs(ids) do
        redis.call('zadd', KEYS[2], lease_end(now, ARGV[3]), id)
    end
    local left = redis.call('pttl', KEYS[1])
    if left > 0 then
        redis.call('pexpire', KEYS[2], left)
    end
end

if was_executed(KEYS[4], ids[1]) then
    return {ARGV[1], -1} -- the caller has given up, or already knows of the grant
end
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now)
if redis.call('zscore', KEYS[2], ids[1]) then
    lease_out() -- a repeated command; the caller counts the lease from this one
    return ARGV[1]
end
if number_at(KEYS[1]) >= #ids then
    redis.call('decrby', KEYS[1], #ids)
    lease_out()
    return ARGV[1]
end
local first_end = tonumber(redis.call('zrange', KEYS[2], 0, 0, 'withscores')[2] or NEVER)
return {ARGV[1], first_end == NEVER and -1 or first_end - now}
