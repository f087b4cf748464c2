-- Takes several locks of one server at once, or none of them.
--
-- First come n locks with one holder: fair, plain and spin locks, and before these f fenced locks. Then come m sides of
-- read-write locks, and limited locks. Positions count from 1, through both. The first two kinds of keys are those of
-- the n locks, the third those of the f fenced ones, and the others those of the m sides.
--
-- KEYS[i]          hash of owner -> holds
-- KEYS[n+i]        queue: member -> ticket
-- KEYS[2*n+i]      last token
-- KEYS[2*n+f+i]    hash of mode, reader -> holds, writer:write -> holds
-- KEYS[2*n+f+m+i]  prefix of the keys of the readers' holds
-- KEYS[2*n+f+2*m+i]  waiting writers that go first: owner -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner, which holds none of these locks except granted ones
-- ARGV[3]  lease, ms
-- ARGV[4]  f; this argument and the next are left out with f = m = 0
-- ARGV[5]  how long to keep the tokens after this, ms; 0 = forever
-- ARGV[4+2*i]  'write', 'read' or 'limited'
-- ARGV[5+2*i]  read: for how long after a heartbeat waiting writers keep readers out at most, ms; 0 overtakes them.
--              limited: how many owners may hold it
--
-- Returns the nonce, for OK, with fenced locks {nonce, 'OK', {their tokens}}; {nonce, ms after which to try again at the
-- latest, the position of the first lock that is not free}; or {nonce, 'QUEUED'} if a lock before it must be acquired
-- alone: a free lock has waiters in its queue, and its acquire grants it to the first one; or the owner reads a lock
-- that it is to write.

-- include: lease
-- include: owns

local owner, lease, fenced = ARGV[2], ARGV[3], tonumber(ARGV[4] or 0)
local m = math.max(#ARGV - 5, 0) / 2
local n = (#KEYS - fenced - 3 * m) / 2

-- The usual case costs one command: none is held, and none has waiters.
if n > 0 and redis.call('exists', unpack(KEYS, 1, 2 * n)) > 0 then
    for i = 1, n do
        local lock = KEYS[i]
        if owns(lock, owner) then
            lease = no_shorter(lock, lease) -- granted, or this is a repeated command
        elseif redis.call('exists', lock) == 1 then
            return {ARGV[1], redis.call('pttl', lock), i}
        elseif redis.call('exists', KEYS[n + i]) == 1 then
            return {ARGV[1], 'QUEUED'}
        end
    end
end
if m > 0 then
-- include: multi_sides
    local first, found = 2 * n + fenced, {}
    for i = 1, n do
        found[KEYS[i]] = 'plain'
    end
    for i = 1, m do
        local lock, side = KEYS[first + i], ARGV[4 + 2 * i]
        local wait
        if found[lock] then
            -- This script is about to take the lock otherwise, which only lets a writer read.
            wait = not (found[lock] == 'write' and side == 'read') and tonumber(ARGV[3])
        else
            wait = side_waits(side, lock, KEYS[first + m + i], KEYS[first + 2 * m + i], owner, tonumber(ARGV[5 + 2 * i]))
        end
        if wait == 'UPGRADE' then
            return {ARGV[1], 'QUEUED'}
        elseif wait then
            return {ARGV[1], wait, n + i}
        end
        found[lock] = side
    end
    for i = 1, m do
        take_side(ARGV[4 + 2 * i], KEYS[first + i], KEYS[first + m + i], KEYS[first + 2 * m + i], owner, ARGV[3])
    end
end
local tokens = {}
if fenced > 0 then
-- include: token
    for i = 1, fenced do
        tokens[i] = next_token(KEYS[2 * n + i], ARGV[5])
    end
end
if n > 0 then
    redis.call('hset', KEYS[1], owner, 1)
    redis.call('pexpire', KEYS[1], lease)
    for i = 2, n do
        -- The lease is removed with it.
        redis.call('copy', KEYS[1], KEYS[i], 'replace')
    end
end
if fenced == 0 then
    return ARGV[1]
end
return {ARGV[1], 'OK', tokens}
