"""The two faces of a flow: a blocking method, and a coroutine method with Django's ``a`` prefix.

Both are written out, so that editors, notebooks and mocks find ordinary methods. Their body is written once, in a
coroutine function that has the method's name with an underscore, and the driver as its first argument.
"""

from __future__ import annotations

from django.core.exceptions import SynchronousOnlyOperation

from django_rlock.drivers.base import Driver
from django_rlock.drivers.identity import must_not_block, running_loop
from django_rlock.drivers.room import async_driver, sync_driver
from django_rlock.locks.kinds import Named
from django_rlock.process import notice_fork


def blocking_driver(of: Named) -> Driver:
    """The blocking driver. Raises ImproperlyConfigured for a wrong alias; SynchronousOnlyOperation in an event loop,
    unless DJANGO_ALLOW_ASYNC_UNSAFE is set."""
    notice_fork()
    driver = sync_driver(of.using)
    if must_not_block():
        raise SynchronousOnlyOperation(
            "A blocking method was called inside an event loop, which it would block. "
            "Use the async methods (their names begin with a, as aacquire; async with), or move the whole 'with' "
            "statement into a function that you call by sync_to_async()."
        )
    return driver


def awaited_driver(of: Named) -> Driver:
    """The async driver. Raises ImproperlyConfigured for a wrong alias, RuntimeError outside of asyncio."""
    notice_fork()
    if running_loop() is None:
        raise RuntimeError(
            "The async methods need a running asyncio event loop, and there is none here. Other loops, such as trio's, "
            "are not supported: call the blocking methods in a thread, the whole block in one function."
        )
    return async_driver(of.using)
