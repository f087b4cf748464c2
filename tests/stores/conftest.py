"""Locks in the process, through both faces."""

from tests.faces import face, nothing_left, pytest_pyfunc_call

__all__ = ["face", "nothing_left", "pytest_pyfunc_call"]
