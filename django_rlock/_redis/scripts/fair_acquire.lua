-- Takes a fair lock if its queue allows that, confirms a grant, or takes a ticket.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  queue: member -> ticket
-- KEYS[3]  alive: client -> epoch ms
-- ARGV[1]  nonce
-- ARGV[2]  owner, in its form in the queue
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  claim time, ms
-- ARGV[6]  alive time, ms; 0 = do not wait, and give up the ticket
--
-- Returns the nonce, for OK; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, PTTL, 1 if the holder does
-- not know the queue, else 0, the ticket that was drawn, or '' if none was}.

local lock, queue, alive, member, count = KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3]
local owner = string.match(member, '^/%d+/(.*)$', 37) or member

local function take()
    redis.call('hset', lock, owner, count)
    redis.call('pexpire', lock, ARGV[4])
    return ARGV[1]
end

local left = redis.call('pttl', lock)
if left == -2 and count == '1' and redis.call('exists', queue) == 0 then
    return take()
end

-- include: fair_grant
-- include: guests

local function take_ticket()
    local now, alive_ms = now_us(), ARGV[6]
    local last = tonumber(redis.call('zrange', queue, -1, -1, 'withscores')[2] or 0)
    -- 16 digits: tostring() would round the ticket to 14.
    local ticket = string.format('%.0f', math.max(now, last + 1))
    local drawn = redis.call('zadd', queue, 'nx', ticket, member) == 1
    local now_ms = math.floor(now / 1000)
    local is_new = mark_alive(alive, member, alive_ms, now_ms)
    -- Tickets are times, so only the first owner that queues within a second prolongs the TTLs of the keys.
    if is_new == 1 or math.floor(last / 1000000) ~= math.floor(now / 1000000) then
        redis.call('pexpire', queue, alive_ms * 6)
        tidy(alive, alive_ms, now_ms)
    end
    return drawn and ticket or ''
end

if left == -2 then
    if count ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    left = left_to_guests(alive)
    if left == 0 then
        if redis.call('zrange', queue, 0, 0)[1] == member then
            redis.call('zrem', queue, member)
            return take()
        end
        local granted = grant(lock, queue, alive, ARGV[5])
        if granted == nil then
            return take()
        end
        left = granted and tonumber(ARGV[5]) or 0 -- behind dead waiters, the next owner is not known yet
    end
end

-- This includes a grant just made: with dead waiters before it, the first waiter may have been this owner.
local found, fields = redis.call('hgetall', lock), {}
for i = 1, #found, 2 do
    fields[found[i]] = found[i + 1]
end
if fields[member] == CLAIMED and count == '1' then
    -- The lease replaces the claim, also if it is shorter. HDEL first: it is allowed when memory is full.
    redis.call('hdel', lock, member)
    return take()
end
local holds = fields[owner]
-- In a read-write lock's hash, which has a mode, the field is a reader's share.
if holds and not fields['mode'] then
    if member ~= owner then
        redis.call('zrem', queue, member)
    end
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the HSET. A longer lease
    -- stays: this may be a late copy, and under a name chosen by the caller, another process may rely on it.
    redis.call('pexpire', lock, math.max(left, tonumber(ARGV[4])))
    if holds ~= count then
        redis.call('hset', lock, owner, count)
    end
    return ARGV[1]
end
if count ~= '1' then
    return {ARGV[1], 'LOST'}
end
local ticket = ''
if ARGV[6] == '0' then
    redis.call('zrem', queue, member)
else
    ticket = take_ticket()
end
-- include: java_entry
if found[1] and is_javas(found[1]) then
    note_guest(alive)
end
return {ARGV[1], left, found[1] and is_ours(found[1]) and 0 or 1, ticket}
