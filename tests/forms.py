"""The suite's short form, which the gate runs, and its long form, of ``make test-all``."""

import os
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("RLOCK_TEST_THOROUGH"))
"""Whether this is the long form: tests marked ``thorough`` run, and sweeps go through all they have."""


def long(*values: Any) -> list[Any]:
    """Parameters of the long form."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]
