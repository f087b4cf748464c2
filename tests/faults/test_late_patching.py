"""gevent and eventlet replace Python's locks, queues and threads. A server may let them do so after it has loaded the
project: gunicorn does under --preload. A "thread" that then waits for a lock of the system stops the whole process."""

from importlib.util import find_spec

import pytest

from tests.processes import ClientProcess

PROGRAM = """
import warnings
from django_rlock import rlock
from tests.forking import in_child
warnings.simplefilter("ignore")

def work():
    if library == "gevent":
        from gevent import monkey
        monkey.patch_all()
    else:
        import eventlet
        eventlet.monkey_patch()
    import threading
    import time
    inside, most = [], []

    def visit(seconds):
        with rlock("stock:42", wait_time=30):
            inside.append(seconds)
            most.append(len(inside))
            time.sleep(seconds)
            inside.remove(seconds)

    # Long enough that all background threads are needed.
    waiting = [threading.Thread(target=visit, args=(seconds,)) for seconds in (0.7, *[0.001] * 9)]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join()
    assert most == [1] * 10, most

in_child(work) if where == "forked" else work()
"""


@pytest.mark.parametrize("where", ["forked", "here"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_process_that_is_patched_late_goes_on(server, redis_client, library, where):
    if find_spec(library) is None:  # not imported here: eventlet warns of each later fork
        pytest.skip(f"{library} is in the dependency group test")
    with ClientProcess(server.url) as process:
        process.run(PROGRAM, library=library, where=where)
