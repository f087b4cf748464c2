-- Gives n held locks a new lease, unless they have a longer one.
--
-- KEYS[i]    hash of owner -> holds, for lock i
-- ARGV[1]    nonce
-- ARGV[2]    lease, ms
-- ARGV[2+i]  owner of lock i
--
-- Returns {nonce, renewed, ...}, for each lock 1, or 0 when that owner does not hold it.

-- include: lease
-- include: owns

local function renew(lock, owner)
    if not owns(lock, owner) then
        return 0
    end
    redis.call('pexpire', lock, no_shorter(lock, ARGV[2]))
    return 1
end

local n, renewed = #KEYS, {}
for i = 1, n do
    renewed[i] = renew(KEYS[i], ARGV[2 + i])
end
return {ARGV[1], unpack(renewed)}
