"""Copies of commands that the server executes late."""

import pytest

from django_rlock._transport import worker
from tests.background import is_clean, settle


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Cleans up again soon; how often is another test's business."""
    monkeypatch.setattr(worker, "AGAIN_AFTER", 0.05)


async def arrive(binding, late):
    """Let a copy reach the server now."""
    assert late.served.is_set()
    late.let_go.set()
    await binding.until(late.obeyed.is_set)


def is_settled():
    """Whether background threads have nothing more to send."""
    settle()
    return is_clean()
