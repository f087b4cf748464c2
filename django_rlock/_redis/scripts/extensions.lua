-- Included by other scripts, not called on its own.
--
-- An owner may choose a shorter lease, so an extension must not be executed after a later one. The nonces of a process
-- rise. If an extension was sent more than once, or got no reply, its owner settles all extensions that were sent so
-- far. The server remembers that for longer than a copy may be under way: REMEMBERED, in ms.

local function is_settled(settled, nonce)
    return (tonumber(redis.call('get', settled)) or 0) > tonumber(nonce)
end

local function settle_extensions(settled, nonce)
    redis.call('set', settled, nonce, 'px', 120000)
end
