"""The store in the memory of this process, which needs no server."""
