-- Included by other scripts, not called on its own.

-- The new TTL of a key, ms: as requested, but not shorter than the current TTL. The command may be executed late, after
-- its owner has chosen a longer lease; and under a name chosen by the caller, another process may rely on a longer lease.
local function no_shorter(key, lease_ms)
    return math.max(redis.call('pttl', key), tonumber(lease_ms))
end
