-- Takes one node's part of a RedLock and draws a token there, or returns the remaining lease of the other owner.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  last token
-- KEYS[3]  tombstone: exists if the owner has released already
-- KEYS[4]  mark of the node's data, which is lost with the data; omitted for nodes that never lose data
-- KEYS[5]  the mark of release 0.1; omitted likewise
-- ARGV[1]  nonce
-- ARGV[2]  owner, whose id is new in every attempt
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how long to keep the token after this, ms; 0 = forever
-- ARGV[6]  quarantine of nodes that may have lost data, ms; 0 = nodes never lose data
-- ARGV[7]  name of the client's list of nodes
-- ARGV[8]  token that the client has proposed to all nodes; 0 = none
--
-- Returns {nonce, 'OK', token, the node's clock in us, the mark, the longest quarantine in ms, the other lists of nodes},
-- without the last three if nodes never lose data; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, PTTL},
-- which is 0 if the attempt was abandoned before this arrived.

-- include: token
-- include: voter

local function marked()
    return KEYS[4] and mark_of(KEYS[4], KEYS[5], ARGV[2], ARGV[6], ARGV[7]) or {}
end

local left = redis.call('pttl', KEYS[1]) -- -2: nobody has it
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', KEYS[1], math.max(left, tonumber(ARGV[4])))
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    return {ARGV[1], 'OK', tonumber(redis.call('get', KEYS[2])) or next_token(KEYS[2], ARGV[5]), now_us(), unpack(marked())}
end
if ARGV[3] ~= '1' then
    return {ARGV[1], 'LOST'}
end
if left ~= -2 then
    return {ARGV[1], left}
end
if redis.call('exists', KEYS[3]) == 1 then
    return {ARGV[1], 0}
end
local token, now = next_token(KEYS[2], ARGV[5], ARGV[8])
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
redis.call('pexpire', KEYS[1], ARGV[4])
return {ARGV[1], 'OK', token, now, unpack(marked())}
