-- Takes a read-write lock for writing, or returns the remaining lease of the other holders.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  prefix of the keys of the readers' holds
-- KEYS[3]  waiting writers that go first: owner -> epoch ms
-- KEYS[4]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how long to keep new readers out while it waits, ms; 0 lets them in (again)
--
-- Returns the nonce, for OK; {nonce, 'LOST'} for a re-entry whose hold is gone; {nonce, 'UPGRADE'} if the owner is a
-- reader, and would wait for itself; or {nonce, PTTL}.

-- include: write_hold
-- include: write_waiters

local lock, writers, owner, count = KEYS[1], KEYS[3], ARGV[2], ARGV[3]
local mode = redis.call('hget', lock, 'mode')

if is_writer(lock, owner, mode) then
    set_write_holds(lock, owner, count, ARGV[4])
    return ARGV[1]
end
if count ~= '1' then
    return {ARGV[1], 'LOST'}
end
local refusal = writer_waits(lock, KEYS[2], owner, mode)
if not refusal then
    take_for_writer(lock, writers, owner, ARGV[4])
    return ARGV[1]
end
if ARGV[5] == '0' or refusal == 'UPGRADE' then
    let_readers_in(writers, owner, KEYS[4])
else
    keep_readers_out(writers, owner, ARGV[5])
end
return {ARGV[1], refusal}
