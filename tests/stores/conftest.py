"""Locks in the process, through both bindings."""

from tests.bindings import binding, nothing_left, pytest_pyfunc_call

__all__ = ["binding", "nothing_left", "pytest_pyfunc_call"]
