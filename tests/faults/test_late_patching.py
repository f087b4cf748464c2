"""gevent and eventlet replace Python's locks, queues and threads. A server may let them do so after it has loaded the
project: gunicorn does under --preload. A "thread" that then waits for a lock of the system stops the whole process."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.eventually import PATIENCE

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import django
from django.conf import settings
settings.configure(
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django_rlock"],
)
django.setup()
from django_rlock import rlock
from tests.forking import in_child

def work():
    if sys.argv[2] == "gevent":
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

in_child(work) if sys.argv[3] == "forked" else work()
"""


@pytest.mark.parametrize("where", ["forked", "here"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_process_that_is_patched_late_goes_on(server, redis_client, library, where):
    if find_spec(library) is None:  # not imported here: eventlet warns of each later fork
        pytest.skip(f"{library} is in the dependency group test")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, server.url, library, where]
    subprocess.run(command, cwd=ROOT, env=os.environ, check=True, timeout=PATIENCE)
