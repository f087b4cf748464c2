-- Takes Redisson's fenced lock with a token that rises with every owner, or tells how long the other's lease runs.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  last token
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  holds that the owner has after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
-- ARGV[5]  how long the token outlives this, ms; 0 = for ever
--
-- Returns {nonce, 'OK', token}; {nonce, 'LOST'} when it is a re-entry and the owner's hold is gone; or {nonce, PTTL}.

-- include: owns
-- include: token

if redis.call('exists', KEYS[1]) == 0 then
    if ARGV[3] ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    local token = next_token(KEYS[2], ARGV[5])
    redis.call('hset', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[4])
    return {ARGV[1], 'OK', token}
end
if owns(KEYS[1], ARGV[2]) then
    -- PEXPIRE first: it is allowed when memory is full, and after a write the HSET is allowed too.
    redis.call('pexpire', KEYS[1], ARGV[4])
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    -- No token where the plain lock of this name was taken first.
    return {ARGV[1], 'OK', tonumber(redis.call('get', KEYS[2])) or next_token(KEYS[2], ARGV[5])}
end
if ARGV[3] ~= '1' then
    return {ARGV[1], 'LOST'}
end
return {ARGV[1], redis.call('pttl', KEYS[1])}
