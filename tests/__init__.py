"""The package's tests."""

import os

THOROUGH = bool(os.environ.get("RLOCK_TEST_THOROUGH"))
"""Whether sweeps take their long form, as in ``make test-all``."""
