"""The package's own connections: opened by redis-py, then plain sockets shared with no pool and no other command."""
