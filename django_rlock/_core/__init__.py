"""The foundations of all other packages: the process's clock, threads and texts. Nothing here depends on locks."""
