-- Returns whether a read-write lock has readers, and how often one owner reads.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns {nonce, holds of the owner, the readers' longest lease in ms, the owner's own}; -2 if there is none.

-- include: read_holds

local count = redis.call('hget', KEYS[1], ARGV[2])
local lease = read_lease(KEYS[2], ARGV[2], count)
local longest = read_leases(KEYS[1], KEYS[2])
local alive = lease >= 0
return {ARGV[1], alive and holds_in(count) or 0, longest, alive and lease or -2}
