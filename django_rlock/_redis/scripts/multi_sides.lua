-- Included by multi_acquire, not called on its own.

-- include: limited_refusal
-- include: read_hold
-- include: read_refusal
-- include: write_hold

-- What keeps an owner from taking a side of a read-write lock, or a limited lock: the ms after which it may try again,
-- or 'UPGRADE'; nil if it may take it now.
local function side_waits(side, lock, holds, writers, owner, number)
    local left, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')
    if side == 'write' then
        if not is_writer(lock, owner, mode) then
            return writer_waits(lock, holds, owner, mode)
        end
    elseif not is_reader(lock, holds, owner) then
        if side == 'limited' then
            return limited_waits(lock, holds, number, left, mode)
        end
        return reader_waits(lock, writers, owner, number, left, mode)
    end
end

-- Takes it; a command that comes again prolongs the lease.
local function take_side(side, lock, holds, writers, owner, lease_ms)
    if side ~= 'write' then
        add_read_hold(lock, holds, owner, '1', lease_ms, redis.call('pttl', lock))
    elseif is_writer(lock, owner, redis.call('hget', lock, 'mode')) then
        set_write_holds(lock, owner, 1, lease_ms)
    else
        take_for_writer(lock, writers, owner, lease_ms)
    end
end
