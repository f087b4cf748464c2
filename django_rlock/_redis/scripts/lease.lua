-- Included by other scripts, not called on its own.

-- The time to live for a key, ms: as requested, but not shorter than it has. This command may be late, after its owner
-- has chosen a longer lease; and under a name chosen by the caller, another process may rely on a longer one.
local function no_shorter(key, lease_ms)
    return math.max(redis.call('pttl', key), tonumber(lease_ms))
end
