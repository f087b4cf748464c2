-- Included by the scripts of the expirable semaphore, not called on its own.

-- include: counting

-- Redisson's score of a permit whose lease has no end.
local NEVER = 922337203685477

-- The end of a lease that begins now, epoch ms; a lease of 0 never ends.
local function lease_end(now, lease_ms)
    return lease_ms == '0' and NEVER or now + lease_ms
end

-- Reclaims the permits whose leases have ended. This does not create a deleted semaphore again.
local function reclaim(key, permits, channel, now)
    local ended = redis.call('zremrangebyscore', permits, '-inf', now)
    if ended > 0 and redis.call('exists', key) == 1 then
        tell(channel, redis.call('incrby', key, ended))
    end
end

-- The permits in a string of ids, 16 bytes each.
local function ids_in(text)
    local ids = {}
    for at = 1, #text, 16 do
        ids[#ids + 1] = string.sub(text, at, at + 15)
    end
    return ids
end
