"""The systems beside ours: their contenders exclude each other, as ours do."""

from typing import Any

import pytest

from benchmarks.systems import servers
from benchmarks.systems.contenders import SYSTEMS, Terms, ZooKeeperLock
from tests.beside import beside

FOREIGN = [name for name, system in SYSTEMS.items() if system.server != "Valkey"]
"""Those that need no settings of Django's."""


@pytest.fixture(scope="module")
def found():
    with servers.running() as running:
        yield running


@pytest.fixture
def two_of(found):
    """Two contenders of a system on one lock, as two processes have them; the second one waits for a second."""
    made: list[Any] = []

    def make(name):
        server = found.servers.get(SYSTEMS[name].server)
        if server is None:
            pytest.skip(found.note)
        made.extend(SYSTEMS[name].make(Terms(server.url, f"test:{name}", wait)) for wait in (60.0, 1.0))
        return made

    yield make
    for each in made:
        disconnect(each)


def disconnect(contender):
    if isinstance(contender, ZooKeeperLock):
        contender._client.stop()
        contender._client.close()
    else:
        contender._connection.close()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_contender_excludes_another_one_which_enters_when_it_leaves(name, two_of):
    patient, hasty = two_of(name)
    assert patient.take()
    assert not hasty.take()
    patient.give()
    assert hasty.take()
    with beside(patient.take) as entered:
        hasty.give()
    assert entered.result() is True
    patient.give()
