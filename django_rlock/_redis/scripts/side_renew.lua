-- Gives the holds of n sides of read-write locks a new lease, unless they have a longer one.
--
-- KEYS[2*i-1]  hash of mode, reader -> holds, writer:write -> holds, for side i
-- KEYS[2*i]    prefix of the keys of the readers' holds
-- ARGV[1]      nonce
-- ARGV[2]      lease, ms
-- ARGV[2+i]    owner's field in the hash of side i
--
-- Returns {nonce, renewed, ...}, for each side 1, or 0 when that owner does not hold it, or no longer does.

-- include: lease
-- include: read_holds

local function renew_writer(lock, writer)
    if redis.call('hexists', lock, writer) == 0 then
        return 0
    end
    redis.call('pexpire', lock, no_shorter(lock, ARGV[2]))
    return 1
end

local function renew_reader(lock, holds, reader)
    local count = redis.call('hget', lock, reader)
    local lease = read_lease(holds, reader, count)
    if lease < 0 then
        return 0
    end
    lease_holds(holds, reader, count, math.max(lease, tonumber(ARGV[2])))
    settle(lock, holds)
    return 1
end

local renewed = {}
for i = 1, #KEYS / 2 do
    local lock, holds, field = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 + i]
    renewed[i] = is_writers(field) and renew_writer(lock, field) or renew_reader(lock, holds, field)
end
return {ARGV[1], unpack(renewed)}
