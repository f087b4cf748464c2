-- Frees a lock of any kind whoever holds it, notifies its holders, and lets the next waiter take it.
--
-- KEYS[1]  hash of owner -> holds; of a read-write lock: mode, reader -> holds, writer:write -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- KEYS[4]  Redisson's channel
-- KEYS[5]  queue of Redisson's fair lock
-- KEYS[6]  deadlines of the waiters there: owner -> epoch ms
-- KEYS[7]  prefix of the keys of a read-write lock's read holds
-- KEYS[8]  Redisson's channel of read-write locks
-- KEYS[9]  executed requests
-- ARGV[1]  nonce
-- ARGV[2]  field of the owner that must hold it, or '' for any
-- ARGV[3]  claim time, ms
-- ARGV[4]  'read' or 'write' for that side of a read-write lock alone, '' for any lock
-- ARGV[5]  request
-- ARGV[6]  channel that notifies its holders; on one server it is for all locks, and so in no slot of theirs
-- ARGV[7]  message for them
--
-- Returns the nonce, for 1, or {nonce, 0} if the lock, or that owner's hold, does not exist. The request is remembered
-- for longer than a copy of it may be under way: REMEMBERED, in ms. A copy would free the next holder.

-- include: counting
-- include: hand_on
-- include: read_holds

local lock, owner, side = KEYS[1], ARGV[2], ARGV[4]
local mode = redis.call('hget', lock, 'mode') -- raises an error if the key is not a lock

if was_executed(KEYS[9], ARGV[5]) then
    return ARGV[1]
end

local function is_meant(field)
    local role = is_writers(field) and 'write' or 'read'
    return field ~= 'mode' and (owner == '' or owner == field) and (side == '' or side == role)
end

-- Returns the message for the waiters of a read-write lock, or nil if it was not held.
local function free_sides()
    local message
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local field = fields[at]
        if is_meant(field) then
            drop(lock, KEYS[7], field, fields[at + 1])
            message = message or '0'
            if is_writers(field) then
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
    hand_on(lock, KEYS[2], KEYS[3], ARGV[3], KEYS[4], KEYS[5], KEYS[6])
    redis.pcall('publish', ARGV[6], ARGV[7])
    remember(KEYS[9], ARGV[5], 120000)
    return ARGV[1]
end
local message = free_sides()
if not message then
    return {ARGV[1], 0}
end
if not settle(lock, KEYS[7]) then
    hand_on(lock, KEYS[2], KEYS[3], ARGV[3], KEYS[4], KEYS[5], KEYS[6])
end
redis.pcall('publish', KEYS[8], message)
redis.pcall('publish', ARGV[6], ARGV[7])
remember(KEYS[9], ARGV[5], 120000)
return ARGV[1]
