"""Our locks beside their peers, round by round in one run. ``python -m benchmarks --help``."""
