-- Gives a permit a new lease.
--
-- KEYS[1]  number of free permits
-- KEYS[2]  taken permits: id -> epoch ms
-- KEYS[3]  channel
-- KEYS[4]  for an extension: nonce up to which the owner's extensions are settled
-- ARGV[1]  nonce
-- ARGV[2]  id, 16 bytes
-- ARGV[3]  lease, ms; 0 = without end
-- ARGV[4]  1 leaves a longer lease as it is; 0, an extension, replaces any; 2 settles the extensions sent so far
--
-- Returns the nonce, for 1, or {nonce, 0} when it is not taken, or its lease has ended.

-- include: extensions
-- include: permit_reclaim

local now = now_ms()
number_at(KEYS[1]) -- raises an error if the key is not a semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now)
local ends = tonumber(redis.call('zscore', KEYS[2], ARGV[2]) or -1)
if ends == -1 then
    return {ARGV[1], 0}
end
local asked = lease_end(now, ARGV[3])
if ARGV[4] == '1' then
    redis.call('zadd', KEYS[2], math.max(ends, asked), ARGV[2])
elseif ARGV[4] == '2' then
    settle_extensions(KEYS[4], ARGV[1])
elseif not is_settled(KEYS[4], ARGV[1]) then
    redis.call('zadd', KEYS[2], asked, ARGV[2])
    if asked < ends then
        tell(KEYS[3], 1) -- waiters sleep until the end of the lease that they know of
    end
end
return ARGV[1]
