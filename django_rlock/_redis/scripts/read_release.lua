-- Releases one read hold; the last one of all readers frees the lock and wakes a waiter of each process.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds left after this release; 0 takes the owner off the lock
-- ARGV[4]  lease that the remaining holds get, unless they have a longer one, ms
-- ARGV[5]  1 if each owner that leaves makes room for another owner; 0 if only the last one does
--
-- Returns the nonce, for 1, or {nonce, 0} when the owner does not hold the lock for reading, or no longer does.

-- include: read_leave

if release_reader(KEYS[1], KEYS[2], KEYS[3], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1') then
    return ARGV[1]
end
return {ARGV[1], 0}
