"""What is dropped while the interpreter ends: a connection, a waiter, the end of a block."""

import subprocess
import sys

import pytest

CIRCLE = """
class Circle:
    def __init__(self, kept):
        self.kept, self.itself = kept, self
"""
LINK = """
import socket
from django_rlock._transport.connection import Connection
ours, theirs = socket.socketpair()
kept, circle = Connection(ours), Circle(Connection(theirs))
"""
WAITER = """
from django_rlock._transport.listener import Listener
from django_rlock._transport.listener import ThreadWaiter
kept, circle = ThreadWaiter(Listener(None), "channel", None), Circle(ThreadWaiter(Listener(None), "channel", None))
"""
BLOCK = """
from django_rlock._core.interruptions import guarded
def act():
    raise RuntimeError
kept, circle = guarded(print, None, act), Circle(guarded(print, None, act))
"""


@pytest.mark.parametrize("program", [LINK, WAITER, BLOCK], ids=["connection", "waiter", "block"])
def test_nothing_is_printed_when_modules_are_gone(program):
    ended = subprocess.run([sys.executable, "-c", CIRCLE + program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
