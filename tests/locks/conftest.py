"""Tests of the locks' behaviour: each body runs through both faces, most with every kind."""

from tests.faces import face, kind, nothing_left, pytest_pyfunc_call

__all__ = ["face", "kind", "nothing_left", "pytest_pyfunc_call"]
