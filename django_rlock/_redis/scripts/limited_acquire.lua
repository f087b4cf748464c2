-- Takes a lock that a limited number of owners may hold at once, or returns when the first of their leases ends.
-- Its state is that of a read-write lock with readers only.
--
-- KEYS[1]  hash of mode, reader -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how many owners may hold it
--
-- Returns the nonce, for OK; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, ms}.

-- include: limited_refusal
-- include: read_hold

local lock, holds, owner, count = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')

if not is_reader(lock, holds, owner) then
    if count ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    local wait = limited_waits(lock, holds, tonumber(ARGV[5]), left, mode)
    if wait then
        return {ARGV[1], wait}
    end
end
add_read_hold(lock, holds, owner, count, ARGV[4], left)
return ARGV[1]
