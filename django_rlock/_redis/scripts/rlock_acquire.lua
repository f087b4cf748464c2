-- Takes Redisson's plain lock, or returns the remaining lease of the other owner.
--
-- KEYS[1]  hash of owner -> holds
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  the owner's holds after this: 1, or more for a re-entry
-- ARGV[4]  lease, ms
--
-- Returns the nonce, for OK; {nonce, 'LOST'} when it is a re-entry and the owner's hold is gone; or {nonce, PTTL}.

if redis.call('exists', KEYS[1]) == 0 then
    if ARGV[3] ~= '1' then
        return {ARGV[1], 'LOST'}
    end
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    redis.call('pexpire', KEYS[1], ARGV[4])
    return ARGV[1]
end

-- include: lease
-- include: owns

if owns(KEYS[1], ARGV[2]) then
    -- PEXPIRE first (rule 5 of docs/design/architecture.md): a full server allows it, and after it the other writes.
    redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[4]))
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    return ARGV[1]
end
if ARGV[3] ~= '1' then
    return {ARGV[1], 'LOST'}
end
return {ARGV[1], redis.call('pttl', KEYS[1])}
