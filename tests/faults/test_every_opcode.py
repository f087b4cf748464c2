"""A signal may raise at any opcode of a lock call: nobody else waits for what the interrupted thread has left."""

import json
import sys
from contextlib import ExitStack

import pytest

from example_project.embedded import EmbeddedServer
from tests.faults.opcode_bindings import BINDINGS
from tests.faults.opcodes import ALL_KINDS, actions_of
from tests.faults.storm_process import NODES, BrokenOffError, StoppedError, Watched
from tests.forms import first_place, long
from tests.topologies.servers import TOPOLOGIES

SHORT = ("pair", "wait", "again", "extend", "timeout", "block")
STRIDES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "threads": ("fair", SHORT, 12),
    "threads that wait in line": ("rlock", ("second",), 24),
    "logged": ("fair", ("pair", "wait"), 40),
}
"""The short form by binding: so many runs of the suite with consecutive seeds as a stride is long meet every place."""


def interrupt_every(kind, *actions, binding="threads", topology=None, first=1, stride=1, options=()):
    """How many opcodes were interrupted; it fails with the places one of which stops something."""
    tried = 0
    suspects: list[dict[str, object]] = []
    with ExitStack() as stack:
        if topology is None:
            servers = [stack.enter_context(EmbeddedServer()) for _ in range(NODES if kind == "redlock" else 1)]
            where = [server.url for server in servers]
        else:
            where = ["--cache", json.dumps(stack.enter_context(TOPOLOGIES[topology]()).cache)]
        command = [sys.executable, "-m", "tests.faults.opcodes", kind, *where, "--binding", binding]
        command += ["--first", str(first), "--stride", str(stride), "--action", *actions, *options]
        process = stack.enter_context(Watched(command))
        try:
            while "ended" not in (message := json.loads(process.line())):
                suspects = [*suspects, message] if "at" in message else []
                tried += bool(message.get("place"))
        except (StoppedError, BrokenOffError) as stopped:
            places = ("{action}, opcode {at}: {place}".format(**each) for each in suspects)
            pytest.fail("\n".join([f"{kind}, first {first}, stride {stride}", *places, str(stopped)]))
    return tried


@pytest.mark.timeout(600)  # a machine may be slow; what stops is noticed by its watcher
@pytest.mark.parametrize("who", ["threads", "threads that wait in line", *long("logged")])
def test_interrupted_here_and_there(request, who):
    kind, actions, stride = STRIDES[who]
    first, binding = first_place(request.config, stride), who.partition(" ")[0]
    assert interrupt_every(kind, *actions, binding=binding, first=first, stride=stride) > 1200 / stride * len(actions)


MANY = 800
"""Every action has more opcodes; in Python 3.13 and newer there are fewer of them than before."""
ELSEWHERE = ("cluster", ()), ("sentinel", ()), ("sentinel", ("--replica-acks", "1"))
LONG = [
    *((kind, action, binding, None, ()) for binding in BINDINGS for kind in ALL_KINDS for action in actions_of(kind)),
    *(
        (kind, action, binding, topology, options)
        for binding in BINDINGS
        for topology, options in ELSEWHERE
        for kind in ("fair", "read")
        for action in SHORT
    ),
    *(
        (kind, action, binding, "cluster", ())
        for binding in BINDINGS
        for kind in ("multi", "permits", "semaphore", "latch", "write")
        for action in ("pair", "wait")
    ),
    *(("fair", action, binding, None, ("--loud",)) for binding in BINDINGS for action in SHORT),
    *(
        (kind, action, binding, None, ("--cut",))
        for binding in BINDINGS
        for kind in ("fair", "redlock")
        for action in SHORT[:-1]
    ),
]
"""Each action for each kind and binding on a single server (or a RedLock's); some kinds on other topologies; one kind
with receivers of all signals; two whose connections have ended.
"""


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "action", "binding", "topology", "options"), LONG)
def test_interrupted_at_every_opcode(kind, action, binding, topology, options):
    assert interrupt_every(kind, action, binding=binding, topology=topology, options=options) > MANY


COVERED = pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 a with block covers its beginning")


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["alone", pytest.param("within", marks=COVERED)])
def test_a_mutex_that_is_left_locked_is_found(how):
    with pytest.raises(pytest.fail.Exception, match=rf"opcodes\.py:\d+ take_{how}"):
        interrupt_every("rlock", "pair", options=["--mutex", how])
