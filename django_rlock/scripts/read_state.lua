-- Tells whether anybody reads under a read-write lock, and how often one owner does.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  what the keys of the readers' holds begin with
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns {nonce, holds of the owner, the readers' longest lease in ms: -2 when nobody reads}.

-- include: read_holds

local count = redis.call('hget', KEYS[1], ARGV[2])
if read_lease(KEYS[2], ARGV[2], count) < 0 then
    count = 0
end
local longest = read_leases(KEYS[1], KEYS[2])
return {ARGV[1], tonumber(count), longest}
