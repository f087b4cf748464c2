"""Servers of ``benchmarks.programs`` as fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from benchmarks.programs import Program, ProgramUnavailableError

Server = TypeVar("Server", bound=Program)


def started(make: Callable[[], Server]) -> Iterator[Server]:
    """The server, for a fixture; a test that needs it is skipped where its program is missing."""
    try:
        server = make()
    except ProgramUnavailableError as reason:
        pytest.skip(str(reason))
    with server:
        yield server
