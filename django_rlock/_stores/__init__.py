"""Stores that need no server of the project: an embedded server on this machine, and the memory of this process."""
