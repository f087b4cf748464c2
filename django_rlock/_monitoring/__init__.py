"""What processes report of their locks, and what pages and commands make of it."""
