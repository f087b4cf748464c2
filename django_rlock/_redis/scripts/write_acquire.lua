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
-- Returns {nonce, 'OK'}; {nonce, 'LOST'} for a re-entry whose hold is gone; {nonce, 'UPGRADE'} if the owner is a
-- reader, and would wait for itself; or {nonce, PTTL}.

-- include: lease
-- include: read_holds
-- include: write_waiters

local lock, writers, owner, count = KEYS[1], KEYS[3], ARGV[2], ARGV[3]
local field = owner .. ':write'
local mode = redis.call('hget', lock, 'mode')

if mode == 'write' and redis.call('hexists', lock, field) == 1 then
    -- PEXPIRE first (rule 5 of docs/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', lock, no_shorter(lock, ARGV[4]))
    redis.call('hset', lock, field, count)
    return {ARGV[1], 'OK'}
end
if count ~= '1' then
    return {ARGV[1], 'LOST'}
end
if mode == 'read' then
    settle(lock, KEYS[2])
end
if redis.call('exists', lock) == 0 then
    redis.call('hset', lock, 'mode', 'write', field, 1)
    redis.call('pexpire', lock, ARGV[4])
    redis.call('zrem', writers, owner)
    return {ARGV[1], 'OK'}
end
local upgrade = mode == 'read' and redis.call('hexists', lock, owner) == 1
if ARGV[5] == '0' or upgrade then
    let_readers_in(writers, owner, KEYS[4])
else
    keep_readers_out(writers, owner, ARGV[5])
end
return {ARGV[1], upgrade and 'UPGRADE' or redis.call('pttl', lock)}
