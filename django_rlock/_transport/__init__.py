"""How a lock reaches Redis, waits, and identifies its owner: one driver for threads, one for asyncio tasks."""
