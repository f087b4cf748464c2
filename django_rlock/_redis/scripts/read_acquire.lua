-- Takes a read-write lock for reading, or returns after how long to retry at the latest.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  waiting writers that go first: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  for how long after a sign of life waiting writers keep readers out at most, ms; 0 overtakes them
-- ARGV[6]  writer whose lock also allows this reader; '' means the owner itself
--
-- Returns the nonce, for OK; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, ms}.

-- include: read_hold
-- include: read_refusal

local lock, holds, owner, count = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')

if not is_reader(lock, holds, owner) then
    if count ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    local wait = reader_waits(lock, KEYS[3], ARGV[6] == '' and owner or ARGV[6], tonumber(ARGV[5]), left, mode)
    if wait then
        return {ARGV[1], wait}
    end
end
add_read_hold(lock, holds, owner, count, ARGV[4], left)
return ARGV[1]
