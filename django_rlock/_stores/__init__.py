"""Places for locks that are no servers of the project's: a server of this machine, and this process."""
