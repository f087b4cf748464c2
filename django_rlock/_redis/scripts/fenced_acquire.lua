-- Takes Redisson's fenced lock with a token that rises with every owner, or returns the other owner's remaining lease.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  last token
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how long to keep the token after this, ms; 0 = forever
-- ARGV[6]  1 if other processes may hold it as the same owner, with the same token; else 0
--
-- Returns {nonce, 'OK', token}; {nonce, 'LOST'} for a re-entry whose hold is gone; or {nonce, PTTL}.

-- include: lease
-- include: owns
-- include: token

if redis.call('exists', KEYS[1]) == 0 then
    if ARGV[3] ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    local token = next_token(KEYS[2], ARGV[5])
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    redis.call('pexpire', KEYS[1], ARGV[4])
    return {ARGV[1], 'OK', token}
end
if owns(KEYS[1], ARGV[2]) then
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[4]))
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    -- An owner that knows of no hold may have released it, and a failover or old data may have brought the hold back.
    -- Other owners may have had higher tokens since.
    local held = ARGV[3] ~= '1' or ARGV[6] == '1'
    -- No token, if the lock was first taken as a plain lock.
    local token = held and tonumber(redis.call('get', KEYS[2])) or next_token(KEYS[2], ARGV[5])
    return {ARGV[1], 'OK', token}
end
if ARGV[3] ~= '1' then
    return {ARGV[1], 'LOST'}
end
return {ARGV[1], redis.call('pttl', KEYS[1])}
