"""Our locks compared with other libraries', round by round in one run. ``python -m benchmarks --help``."""
