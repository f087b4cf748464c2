-- Included by the scripts that take a read-write lock for a reader, not called on its own.

-- include: write_waiters

-- After how many ms a new reader may try again; nil if it may enter now. ``left`` is the lock's PTTL, and ``most_ms`` for
-- how long after a heartbeat waiting writers keep readers out at most; 0 overtakes them. The writer named ``writer`` may
-- read beside its write hold.
local function reader_waits(lock, writers, writer, most_ms, left, mode)
    if mode == 'write' and redis.call('hexists', lock, writer .. ':write') == 1 then
        return nil
    end
    -- Without a mode, a lock of another kind is held.
    if left ~= -2 and mode ~= 'read' then
        return left
    end
    local wait = most_ms > 0 and kept_out_for(writers, most_ms) or 0
    return wait > 0 and wait or nil
end
