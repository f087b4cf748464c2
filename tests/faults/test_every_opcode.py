"""A signal may raise at any opcode of a lock call: nobody else waits for what the interrupted thread has left."""

import json
import random
import sys
from contextlib import ExitStack

import pytest

from example_project.embedded import EmbeddedServer
from tests.faults.opcodes import actions_of
from tests.faults.storm import KINDS
from tests.faults.storm_process import NODES, BrokenOffError, StoppedError, Watched

SHORT = ("pair", "wait", "again", "extend", "timeout", "block")
STRIDE = 12
"""Of the short form. A line has some eight opcodes, so two or three runs, which begin elsewhere, meet every place."""


def interrupt_every(kind, *actions, first=1, stride=1, options=()):
    """How many opcodes were interrupted; it fails with the places one of which stops something."""
    tried = 0
    suspects: list[dict[str, object]] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(NODES if kind == "redlock" else 1)]
        command = [sys.executable, "-m", "tests.faults.opcodes", kind, *(server.url for server in servers)]
        command += ["--first", str(first), "--stride", str(stride), "--action", *actions, *options]
        process = stack.enter_context(Watched(command))
        try:
            while "ended" not in (message := json.loads(process.line())):
                suspects = [*suspects, message] if "at" in message else []
                tried += bool(message.get("place"))
        except (StoppedError, BrokenOffError) as stopped:
            pytest.fail(
                "\n".join([*("{action}, opcode {at}: {place}".format(**each) for each in suspects), str(stopped)])
            )
    return tried


@pytest.mark.timeout(600)  # a machine may be slow; what stops is noticed by its watcher
def test_interrupted_here_and_there():
    first = random.SystemRandom().randint(1, STRIDE)
    assert interrupt_every("fair", *SHORT, first=first, stride=STRIDE) > 100 * len(SHORT)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "action"), [(kind, action) for kind in KINDS for action in actions_of(kind)])
def test_interrupted_at_every_opcode(kind, action):
    assert interrupt_every(kind, action) > 1000


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_mutex_that_is_left_locked_is_found():
    with pytest.raises(pytest.fail.Exception, match=r"opcodes\.py:\d+ take_alone"):
        interrupt_every("rlock", "pair", options=["--mutex"])
