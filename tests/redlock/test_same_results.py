"""P18: threads, tasks and greenlets get the same results of the same course of events."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from django_rlock._transport.calls import run_sync
from django_rlock.locks.holds import HOLDS
from tests.eventually import PATIENCE
from tests.redlock.same import blocking, course


async def awaiting(lock, method, *args, **kwargs):
    return await getattr(lock, f"a{method}")(*args, **kwargs)


def by_threads(seed, urls):
    HOLDS.clear()
    return run_sync(course(seed, urls, blocking))


def by_tasks(seed, urls):
    HOLDS.clear()
    return asyncio.run(course(seed, urls, awaiting))


@pytest.fixture
def urls(nodes, settings):
    # A busy machine is no reason for another result.
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "NODE_TIMEOUT": 1.0}}
    yield [server.url for server in nodes]
    HOLDS.clear()


@pytest.mark.parametrize("seed", range(15))
def test_p18_threads_and_tasks(seed, urls):
    # A node that a call did not wait for may be asked after it was changed by hand in the next step: that differs from
    # run to run, and true differences do not.
    assert any(by_threads(seed, urls) == by_tasks(seed, urls) for _ in range(5))


def by_greenlets(seed, urls):
    command = [sys.executable, "-m", "tests.redlock.same", str(seed), *urls]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return ast.literal_eval(ended.stdout)


def test_p18_greenlets(urls):
    pytest.importorskip("gevent")
    assert any(by_greenlets(3, urls) == by_threads(3, urls) for _ in range(5))


def test_p18_mutant(urls, monkeypatch):
    """A driver that takes a refusal by most nodes for a grant is distinguished from the other."""
    from django_rlock._transport.quorum import Quorum
    from django_rlock._transport.quorum.tasks import TaskTransport
    from django_rlock._transport.quorum.votes import VoteTally

    once = Quorum._run_once

    async def run_once(self, call):
        if isinstance(self.transport, TaskTransport):
            monkeypatch.setattr(VoteTally, "won", property(lambda tally: len(tally.yes) >= 1))
            # Whichever node replies first.
            monkeypatch.setattr(VoteTally, "decided", property(lambda tally: not tally.unheard))
        return await once(self, call)

    expected = [by_threads(seed, urls) for seed in range(3)]
    monkeypatch.setattr(Quorum, "_run_once", run_once)
    assert [by_tasks(seed, urls) for seed in range(3)] != expected
