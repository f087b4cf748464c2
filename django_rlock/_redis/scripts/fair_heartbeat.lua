-- Keeps a process's waiters alive in the queues of n locks, hands on locks that became free, and finds lost wake-ups.
--
-- KEYS[i]      hash of owner -> holds, for lock i
-- KEYS[n+i]    its queue: member -> ticket
-- KEYS[2*n+i]  its alive marks: client -> epoch ms
-- KEYS[3*n+i]  queue of Redisson's fair lock
-- KEYS[4*n+i]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]    nonce
-- ARGV[2]    claim time, ms
-- ARGV[3]    alive time, ms
-- ARGV[3+i]  the process's longest waiting owner, in its form in queue i
--
-- Returns {nonce, state, PTTL, ...}, two for each lock. The state is 1 if that waiter has its ticket, 2 if it was
-- granted the lock, 3 if it has its ticket and a Java client holds the lock, 0 if the server does not know it.

-- include: fair_grant
-- include: guests
-- include: java_queue

local n, now = #KEYS / 5, now_ms()

local function state_of(lock, queue, member, by_java)
    if redis.call('zscore', queue, member) then
        return by_java and 3 or 1
    end
    return redis.call('hexists', lock, member) * 2
end

local function note_alive(lock, queue, alive, member, waiting, deadlines)
    -- PEXPIRE first: it is allowed when memory is full, and after a write the rest is allowed too.
    redis.call('pexpire', queue, ARGV[3] * 6)
    mark_alive(alive, member, ARGV[3], now)
    tidy(alive, ARGV[3], now)
    local left, by_java = redis.call('pttl', lock), is_held_by_java(lock)
    if left == -2 then
        local guests = left_to_guests(alive)
        if guests > 0 then
            left = guests
        else
            local member = grant(lock, queue, alive, ARGV[2])
            if member ~= nil then
                left = member and tonumber(ARGV[2]) or 0 -- 0 brings the next heartbeat at once
            end
            leave_javas(waiting, deadlines)
        end
    elseif by_java then
        note_guest(alive)
        join_javas(waiting, deadlines)
    end
    return state_of(lock, queue, member, by_java), left
end

local states = {}
for i = 1, n do
    local state, left = note_alive(KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[3 + i], KEYS[3 * n + i], KEYS[4 * n + i])
    states[2 * i - 1], states[2 * i] = state, left
end
return {ARGV[1], unpack(states)}
