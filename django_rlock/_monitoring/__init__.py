"""The processes' reports about their locks: writing them, reading them, and combining them with the locks' state."""
