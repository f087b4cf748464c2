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
-- Returns {nonce, 'OK'}; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, ms}.

-- include: read_hold
-- include: write_waiters

local lock, holds, owner, count = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')
local again = read_lease(holds, owner, redis.call('hget', lock, owner)) >= 0
local writer = (ARGV[6] == '' and owner or ARGV[6]) .. ':write'

if count ~= '1' and not again then
    return {ARGV[1], 'LOST'}
end
if not again and not (mode == 'write' and redis.call('hexists', lock, writer) == 1) then
    -- Without a mode, a lock of another kind is held.
    if left ~= -2 and mode ~= 'read' then
        return {ARGV[1], left}
    end
    local wait = ARGV[5] ~= '0' and kept_out_for(KEYS[3], tonumber(ARGV[5])) or 0
    if wait > 0 then
        return {ARGV[1], wait}
    end
end
add_read_hold(lock, holds, owner, count, ARGV[4], left)
return {ARGV[1], 'OK'}
