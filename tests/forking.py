"""Forks the test process, threads and all: what a child does in spite of its parent's threads is the subject."""

import ctypes
import faulthandler
import os
import traceback
import warnings
from collections.abc import Callable


def fork() -> int:
    """``os.fork()`` without Python's warning that other threads run, which from 3.15 on the suite would raise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        return os.fork()


def fork_in_c() -> int:
    """As a server does that embeds Python: none of Python's hooks runs."""
    return int(ctypes.PyDLL(None).fork())


def in_child(body: Callable[[], object], by: Callable[[], int] = fork) -> None:
    """Run a body in a child that is forked ``by`` a function; what it raises fails the test."""
    reading, writing = os.pipe()
    pid = by()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True, file=writing)  # where a child hangs
        try:
            body()
            os.write(writing, b"ok")
        except BaseException:  # noqa: BLE001 - the parent is told
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    assert said == "ok", said
