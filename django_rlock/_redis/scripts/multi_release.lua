-- Frees several locks of one server, each for its next waiter.
--
-- First come n locks with one holder: fair, plain, spin and fenced locks. Then come m sides of read-write locks, and
-- limited locks. Positions count from 1, through both. The first six kinds of keys are those of the n locks, and the
-- others those of the m sides.
--
-- KEYS[i]      hash of owner -> holds
-- KEYS[n+i]    queue: member -> ticket
-- KEYS[2*n+i]  queue of Redisson's fair lock
-- KEYS[3*n+i]  alive: client -> epoch ms
-- KEYS[4*n+i]  Redisson's channel
-- KEYS[5*n+i]  deadlines of the waiters in Redisson's queue: owner -> epoch ms
-- KEYS[6*n+i]      hash of mode, reader -> holds, writer:write -> holds
-- KEYS[6*n+m+i]    prefix of the keys of the readers' holds
-- KEYS[6*n+2*m+i]  waiting writers that go first: owner -> epoch ms
-- KEYS[6*n+3*m+i]  Redisson's channel of the read-write lock
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  claim time, ms
-- ARGV[3+i]  'write', 'read' or 'limited'
--
-- Returns the nonce, for OK, or {nonce, {the positions of the locks that the owner does not hold}}.

-- include: hand_on
-- include: owns

local m = #ARGV - 3
local n = (#KEYS - 4 * m) / 6
local owner = ARGV[2]
local held, locks, missing = {}, {}, {}
for i = 1, n do
    if owns(KEYS[i], owner) then
        held[#held + 1] = i
        locks[#locks + 1] = KEYS[i]
    else
        missing[#missing + 1] = i
    end
end
if #held > 0 then
    redis.call('del', unpack(locks))
    -- The usual case: all queues are empty. pcall: a user who may not read Redisson's keys gets an error, and checks
    -- each.
    local queued = redis.pcall('exists', unpack(KEYS, n + 1, 3 * n)) ~= 0
    for _, i in ipairs(held) do
        if not queued then
            redis.pcall('publish', KEYS[4 * n + i], '0') -- pcall: see announce
        else
            local queue, waiting, alive, channel = KEYS[n + i], KEYS[2 * n + i], KEYS[3 * n + i], KEYS[4 * n + i]
            give_to_next(KEYS[i], queue, alive, ARGV[3], channel, waiting, KEYS[5 * n + i])
        end
    end
end
if m > 0 then
-- include: read_leave
-- include: write_leave
    for i = 1, m do
        local first, side, had = 6 * n + i, ARGV[3 + i], nil
        local lock, holds, writers, channel = KEYS[first], KEYS[first + m], KEYS[first + 2 * m], KEYS[first + 3 * m]
        if side == 'write' then
            had = release_writer(lock, holds, writers, channel, owner, '0')
        else
            had = release_reader(lock, holds, channel, owner, 0, nil, side == 'limited')
        end
        if not had then
            missing[#missing + 1] = n + i
        end
    end
end
if #missing == 0 then
    return ARGV[1]
end
return {ARGV[1], missing}
