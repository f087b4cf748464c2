-- Gives one reader's holds a new lease, and the lock the longest of all.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  what the keys of the readers' holds begin with
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is, 0 replaces any
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for reading, or no longer.

-- include: read_holds

local lock, holds, owner = KEYS[1], KEYS[2], ARGV[2]
local count = redis.call('hget', lock, owner)
local lease = read_lease(holds, owner, count)
if lease < 0 then
    return {ARGV[1], 0}
end
if ARGV[4] == '0' or lease < tonumber(ARGV[3]) then
    for number = 1, tonumber(count) do
        redis.call('pexpire', hold_key(holds, owner, number), ARGV[3])
    end
end
settle(lock, holds)
return {ARGV[1], 1}
