-- Keeps a process's waiting writers alive, and finds a lock that became free earlier than they know.
--
-- KEYS[1]  hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2]  waiting writers that go first: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  the process's longest waiting writer
-- ARGV[3]  alive time, ms
-- ARGV[4]  1 when that writer goes first, otherwise 0
--
-- Returns {nonce, 0 if that writer should try again, otherwise 1, PTTL of the lock}.

-- include: write_waiters

local writers = KEYS[2]
-- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
redis.call('pexpire', writers, ARGV[3])
for _, writer in ipairs(redis.call('zrange', writers, 0, -1)) do
    if writer == ARGV[2] or string.sub(writer, 1, 36) == string.sub(ARGV[2], 1, 36) then
        keep_readers_out(writers, writer, ARGV[3])
    end
end
local left = redis.call('pttl', KEYS[1])
-- The writer's mark is missing if the server lost it, or if the process was paused for longer than its alive time.
local known = left ~= -2 and (ARGV[4] == '0' or redis.call('zscore', writers, ARGV[2]))
return {ARGV[1], known and 1 or 0, left}
