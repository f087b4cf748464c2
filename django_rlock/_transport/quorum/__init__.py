"""RedLock: an alias with NODES, whose locks are held on a majority of independent servers."""
