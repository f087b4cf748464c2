-- Records that what follows the bodies of n tasks is done.
--
-- KEYS[i]    the success of task i, as in task_done
-- ARGV[1]    nonce
-- ARGV[2]    how long it is remembered, ms
-- ARGV[2+i]  its value, which begins with +
--
-- Returns {nonce, 1, ...}, for each task 1.

-- include: note_success

local n, noted = #KEYS, {}
for i = 1, n do
    note_success(KEYS[i], ARGV[2 + i], ARGV[2])
    noted[i] = 1
end
return {ARGV[1], unpack(noted)}
