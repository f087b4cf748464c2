-- Returns the owners that hold a lock.
--
-- KEYS[1]  hash of owner -> holds; of a read-write lock: mode, reader -> holds, writer:write -> holds
-- ARGV[1]  nonce
--
-- Returns {nonce, the owners' fields in the hash}.

local owners = {}
for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    if field ~= 'mode' then
        owners[#owners + 1] = field
    end
end
return {ARGV[1], owners}
