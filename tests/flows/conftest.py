"""Tests of the flows under every order of their steps."""

from tests.bindings import kind
from tests.flows.exploring import make_world

__all__ = ["kind", "make_world"]
