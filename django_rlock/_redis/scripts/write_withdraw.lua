-- Gives up a waiting writer's place, but no hold of its owner.
--
-- KEYS[1]  waiting writers that go first: owner -> epoch ms
-- KEYS[2]  Redisson's channel
-- ARGV[1]  nonce
-- ARGV[2]  owner
--
-- Returns the nonce, for 1.

-- include: write_waiters

let_readers_in(KEYS[1], ARGV[2], KEYS[2])
return ARGV[1]
