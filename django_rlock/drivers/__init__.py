"""How a lock reaches Redis, waits and tells who is asking: one driver for threads, one for asyncio tasks."""
