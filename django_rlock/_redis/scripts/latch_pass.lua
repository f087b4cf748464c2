-- Returns whether a latch is open.
--
-- KEYS[1]  count
-- ARGV[1]  nonce
--
-- Returns the nonce, for OK, or {nonce, -1} while it is closed.

-- include: counting

if number_at(KEYS[1]) > 0 then
    return {ARGV[1], -1}
end
return ARGV[1]
