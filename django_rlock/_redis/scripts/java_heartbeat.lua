-- Keeps the entry of our waiters alive in the queues of Redisson's fair locks, and finds locks that became free.
-- Redisson's spin lock sends no message when it is released.
--
-- KEYS[i]      hash of owner -> holds, for lock i
-- KEYS[n+i]    queue of Redisson's fair lock
-- KEYS[2*n+i]  deadlines of the waiters there: owner -> epoch ms
-- ARGV[1]  nonce
--
-- Returns {nonce, state, PTTL, ...}, two for each lock. The state is 2 if the lock is free, 3 if a Java client holds it,
-- 1 if another owner holds it.

-- include: java_queue

local n, states = #KEYS / 3, {}
for i = 1, n do
    local left, state = redis.call('pttl', KEYS[i]), 1
    if left == -2 then
        state = 2
    elseif is_held_by_java(KEYS[i]) then
        join_javas(KEYS[n + i], KEYS[2 * n + i])
        state = 3
    end
    states[2 * i - 1], states[2 * i] = state, left
end
return {ARGV[1], unpack(states)}
