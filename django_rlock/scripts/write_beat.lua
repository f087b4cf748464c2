-- Keeps a process's waiting writers alive, and finds a lock whose last holder's lease ended early.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  what the keys of the readers' holds begin with
-- KEYS[3]  waiting writers that go first: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  the process's longest waiting writer
-- ARGV[3]  alive time, ms
--
-- Returns {nonce, 1 while others hold the lock, else 0, PTTL of the lock, {}}.

-- include: read_holds
-- include: write_waiters

local lock, writers = KEYS[1], KEYS[3]
-- PEXPIRE first: it is allowed when memory is full, and after a write the ZADD is allowed too.
redis.call('pexpire', writers, ARGV[3])
for _, writer in ipairs(redis.call('zrange', writers, 0, -1)) do
    if writer == ARGV[2] or string.sub(writer, 1, 36) == string.sub(ARGV[2], 1, 36) then
        keep_readers_out(writers, writer, ARGV[3])
    end
end
if redis.call('hget', lock, 'mode') == 'read' then
    settle(lock, KEYS[2])
end
return {ARGV[1], redis.call('exists', lock), redis.call('pttl', lock), {}}
