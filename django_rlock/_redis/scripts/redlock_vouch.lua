-- Gives a vote to a RedLock's node that has kept its data for the quarantine, measured by the client's clock.
--
-- KEYS[1]  mark of the node's data
-- ARGV[1]  nonce
-- ARGV[2]  mark that the client has known for that time
-- ARGV[3]  the node's run id
-- ARGV[4]  that time, ms
--
-- Returns the nonce, for 1, or {nonce, 0} when the node has another mark: it has lost the data that the client knows.

local found = redis.call('hmget', KEYS[1], 'mark', 'known')
if found[1] ~= ARGV[2] and found[2] ~= ARGV[2] then
    return {ARGV[1], 0}
end
redis.call('hset', KEYS[1], 'known', ARGV[3], 'kept', ARGV[4])
return ARGV[1]
