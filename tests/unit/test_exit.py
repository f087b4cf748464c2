"""What is dropped while the interpreter ends: a connection, a waiter."""

import subprocess
import sys

import pytest

LINK = """
from django_rlock.links import link
dropped = link.Link.__new__(link.Link)
link.contextlib = link.os = None
del dropped
"""

WAITER = """
from django_rlock.drivers.listening import listener, waiters
dropped = waiters.CallingWaiter(listener.Listener(None), "channel", print)
listener.time = listener.weakref = listener.contextlib = waiters.contextlib = None
del dropped
"""


@pytest.mark.parametrize("program", [LINK, WAITER], ids=["connection", "waiter"])
def test_nothing_is_printed_when_modules_are_gone(program):
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
