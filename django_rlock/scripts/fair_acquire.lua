-- Takes a fair lock if it is the owner's turn, confirms a grant, or takes a ticket.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner, as it stands in the queue
-- ARGV[3]  holds that the owner has after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  claim time, ms
-- ARGV[6]  alive time, ms; 0 = do not wait, and give up the ticket
--
-- Returns {nonce, 'OK'}; {nonce, 'LOST'} when it is a re-entry and the owner's hold is gone; or {nonce, PTTL}.

-- include: fair_grant
-- include: owns

local lock, queue, alive, member, count = KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3]
local owner = owner_of(member)

local function take()
    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, ARGV[4])
    return {ARGV[1], 'OK'}
end

local function take_ticket()
    local client = string.sub(member, 1, 36)
    local time = redis.call('time')
    local ticket = time[1] * 1000000 + time[2]
    local last = redis.call('zrange', queue, -1, -1, 'withscores')[2]
    if last and tonumber(last) >= ticket then
        ticket = tonumber(last) + 1
    end
    -- 17 digits: tostring() would round the ticket to 14.
    redis.call('zadd', queue, 'nx', string.format('%.0f', ticket), member)
    redis.call('zadd', alive, math.floor(ticket / 1000) + ARGV[6], client)
    redis.call('pexpire', queue, ARGV[6] * 6)
    redis.call('pexpire', alive, ARGV[6] * 6)
end

if redis.call('exists', lock) == 0 then
    if count ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    local head = redis.call('zrange', queue, 0, 0)[1]
    if not head then
        return take()
    end
    if head == member then
        redis.call('zrem', queue, member)
        return take()
    end
    if not grant(lock, queue, alive, ARGV[5]) then
        return take()
    end
end

-- Also after a grant just made: with dead waiters before it, the head may have been this owner.
if owns(lock, owner) then
    -- PEXPIRE first: it is allowed when memory is full, and after a write the HSET is allowed too.
    redis.call('pexpire', lock, ARGV[4])
    redis.call('hset', lock, owner, count)
    return {ARGV[1], 'OK'}
end
if count ~= '1' then
    return {ARGV[1], 'LOST'}
end
if ARGV[6] == '0' then
    redis.call('zrem', queue, member)
else
    take_ticket()
end
return {ARGV[1], redis.call('pttl', lock)}
