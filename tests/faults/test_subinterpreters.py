"""Subinterpreters, as those of InterpreterPoolExecutor: each has its own modules, and is a separate client."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import PATIENCE

ROOT = Path(__file__).parents[2]
SETUP = """
import sys
import django
from django.conf import settings
settings.configure(CACHES={{"default": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": {url!r}}}}})
django.setup()
from django_rlock import rlock
"""
TAKING = """
import threading
from concurrent import interpreters

class Client:
    # An interpreter with a thread that evaluates what it is asked.

    def __init__(self):
        self.asked, self.told = interpreters.create_queue(), interpreters.create_queue()
        self.interpreter = interpreters.create()
        self.interpreter.prepare_main(asked=self.asked, told=self.told)
        loop = setup + "while command := asked.get(): told.put(eval(command))"
        self.thread = threading.Thread(target=self.interpreter.exec, args=[loop])
        self.thread.start()

    def do(self, expression):
        self.asked.put(expression)
        return self.told.get(timeout=20)

    def end(self):
        self.asked.put("")
        self.thread.join()
        self.interpreter.close()

TAKE = "rlock('stock:42').acquire(wait_time=0)"
LOOK = "rlock('stock:42').holders()[0]"
LEAVE = "rlock('stock:42').release()"
one, other = Client(), Client()
assert one.do(TAKE)
holder = other.do(LOOK)
assert not other.do(TAKE)
assert not eval(TAKE)
one.do(LEAVE)
assert other.do(TAKE)
assert one.do(LOOK).split(":")[0] != holder.split(":")[0]
other.do(LEAVE)
one.end()
other.end()
assert eval(TAKE)
eval(LEAVE)
print("ended")
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 is the first with concurrent.interpreters")
def test_subinterpreters_of_a_process_exclude_each_other(server: Any, redis_client: Any) -> None:
    setup = SETUP.format(url=server.url)
    program = f"{setup}\nsetup = {setup!r}\n{TAKING}"
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, timeout=PATIENCE, capture_output=True, text=True
    )
    assert told.stdout.split() == ["ended"]
    assert not redis_client.keys("rlock:*")
