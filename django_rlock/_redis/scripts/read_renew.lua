-- Gives one reader's holds a new lease, and the lock the longest of all.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  for an extension: nonce up to which the owner's extensions are settled
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is; 0, an extension, replaces any; 2 settles the extensions sent so far
--
-- Returns {nonce, 1}, or {nonce, 0} when the owner does not hold the lock for reading, or no longer does.

-- include: extensions
-- include: lease
-- include: read_holds

local lock, holds, owner = KEYS[1], KEYS[2], ARGV[2]
local count = redis.call('hget', lock, owner)
local lease = read_lease(holds, owner, count)
if lease < 0 then
    return {ARGV[1], 0}
end

local function lease_out(lease_ms)
    for number = 1, holds_in(count) do
        redis.call('pexpire', hold_key(holds, owner, number), lease_ms)
    end
end

if ARGV[4] == '1' then
    lease_out(math.max(lease, tonumber(ARGV[3])))
elseif ARGV[4] == '2' then
    settle_extensions(KEYS[3], ARGV[1])
elseif not is_settled(KEYS[3], ARGV[1]) then
    lease_out(ARGV[3])
end
settle(lock, holds)
return {ARGV[1], 1}
