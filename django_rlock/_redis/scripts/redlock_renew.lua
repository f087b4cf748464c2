-- Gives a RedLock a new lease on one node.
--
-- KEYS[1]  hash of owner -> holds
-- KEYS[2]  mark of the node's data; another key for nodes that never lose data
-- KEYS[3]  the mark of release 0.1; another key likewise
-- KEYS[4]  for an extension: nonce up to which the owner's extensions are settled
-- ARGV[1]  nonce
-- ARGV[2]  owner
-- ARGV[3]  lease, ms
-- ARGV[4]  1 leaves a longer lease as it is; 0, an extension, replaces any; 2 settles the extensions sent so far
-- ARGV[5]  quarantine of nodes that may have lost data, ms; 0 = nodes never lose data
-- ARGV[6]  name of the client's list of nodes
--
-- Returns {nonce, holds of the owner, the mark, the longest quarantine in ms, the other lists of nodes}; {nonce, 0} if
-- another owner has the lock, {nonce, -1} if it is not held.

-- include: extensions
-- include: lease
-- include: voter

local holds = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not holds then
    return {ARGV[1], redis.call('exists', KEYS[1]) - 1}
end
if ARGV[4] == '1' then
    redis.call('pexpire', KEYS[1], no_shorter(KEYS[1], ARGV[3]))
elseif ARGV[4] == '2' then
    settle_extensions(KEYS[4], ARGV[1])
elseif not is_settled(KEYS[4], ARGV[1]) then
    redis.call('pexpire', KEYS[1], ARGV[3])
end
return {ARGV[1], holds, unpack(ARGV[5] ~= '0' and mark_of(KEYS[2], KEYS[3], ARGV[2], ARGV[5], ARGV[6]) or {'', 0, ''})}
