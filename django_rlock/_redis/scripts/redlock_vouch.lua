-- Gives a vote to a RedLock's node that has kept its data for the quarantine, by the clock of the client that says so.
--
-- KEYS[1]  mark of the node's data
-- ARGV[1]  nonce
-- ARGV[2]  mark that the client has known for so long
-- ARGV[3]  the node's run id
--
-- Returns {nonce, 1}, or {nonce, 0} when the node has another mark: its data are not those that the client knows.

if redis.call('get', KEYS[1]) ~= ARGV[2] then
    return {ARGV[1], 0}
end
redis.call('set', KEYS[1], ARGV[3])
return {ARGV[1], 1}
