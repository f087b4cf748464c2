-- Releases one write hold; the last one frees the lock, or leaves it to its owner's read holds, and wakes all waiters.
-- An owner that only waits gives up its place.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  waiting writers that go first: owner -> epoch ms
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 removes the owner from the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock for writing.

-- include: write_leave

if release_writer(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[3], ARGV[4]) then
    return ARGV[1]
end
return {ARGV[1], 0}
