-- Gives a permit a new lease.
--
-- KEYS[1]  number of permits left
-- KEYS[2]  permits that are taken: id -> epoch ms
-- KEYS[3]  channel
-- ARGV[1]  nonce
-- ARGV[2]  id, 16 bytes
-- ARGV[3]  lease, ms; 0 = without end
-- ARGV[4]  1 leaves a longer lease as it is, 0 replaces any
--
-- Returns {nonce, 1}, or {nonce, 0} when it is not taken, or its lease has ended.

-- include: permit_reclaim

local now = now_ms()
number_at(KEYS[1]) -- an error, where the key is no semaphore
reclaim(KEYS[1], KEYS[2], KEYS[3], now)
local ends = tonumber(redis.call('zscore', KEYS[2], ARGV[2]) or -1)
if ends == -1 then
    return {ARGV[1], 0}
end
-- A renewal may arrive after its owner has chosen a longer lease.
if ARGV[4] == '0' or ends < lease_end(now, ARGV[3]) then
    redis.call('zadd', KEYS[2], lease_end(now, ARGV[3]), ARGV[2])
end
return {ARGV[1], 1}
