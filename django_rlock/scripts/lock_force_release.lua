-- Frees a lock of any kind whoever holds it, and lets the next one in.
--
-- KEYS[1]  hash of owner -> holds; of a read-write lock: mode, reader -> holds, writer:write -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- KEYS[5]  what the keys of a read-write lock's read holds begin with
-- KEYS[6]  Redisson's channel of read-write locks
-- ARGV[1]  nonce
-- ARGV[2]  field of the owner that must hold it, or '' for any
-- ARGV[3]  claim time, ms
-- ARGV[4]  'read' or 'write' for that side of a read-write lock alone, '' for any lock
--
-- Returns {nonce, 1}, or {nonce, 0} when nobody holds it, or not that owner.

-- include: fair_grant
-- include: read_holds

local lock, owner, side = KEYS[1], ARGV[2], ARGV[4]
local mode = redis.call('hget', lock, 'mode') -- an error, where the key is no lock

local function is_meant(field)
    local role = string.sub(field, -6) == ':write' and 'write' or 'read'
    return field ~= 'mode' and (owner == '' or owner == field) and (side == '' or side == role)
end

-- Answers what the waiters of a read-write lock are told, or nil when nobody held it.
local function free_sides()
    local message
    for _, field in ipairs(redis.call('hkeys', lock)) do
        if is_meant(field) then
            drop(lock, KEYS[5], field)
            message = message or '0'
            if string.sub(field, -6) == ':write' then
                redis.call('hset', lock, 'mode', 'read')
                message = '1'
            end
        end
    end
    return message
end

if mode ~= 'read' and mode ~= 'write' then
    local held = owner == '' and redis.call('exists', lock) or redis.call('hexists', lock, owner)
    if held == 0 or side ~= '' then
        return {ARGV[1], 0}
    end
    hand_on(lock, KEYS[2], KEYS[3], KEYS[4], ARGV[3])
    return {ARGV[1], 1}
end
local message = free_sides()
if not message then
    return {ARGV[1], 0}
end
if not settle(lock, KEYS[5]) then
    hand_on(lock, KEYS[2], KEYS[3], KEYS[4], ARGV[3])
end
redis.pcall('publish', KEYS[6], message)
return {ARGV[1], 1}
