"""The private names of other libraries that this package reads, because they have no public ones: one reader for each.

A release of such a library may rename or change any of them. For each reader a test of its own fails then, by name
(tests/unit/test_foreign.py). Readers that only help to describe or to refuse something return nothing for a name that
is gone; the others raise AttributeError.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import re
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter, methodcaller
from types import FrameType
from typing import Any

import redis.cluster
from django.db import connections
from redis._parsers import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

# --- Python -----------------------------------------------------------------------------------------------------------

running_loop = asyncio._get_running_loop  # noqa: SLF001 - in asyncio.events.__all__
"""Returns the running event loop, or None; asyncio.get_running_loop() raises then, which takes five times as long."""
end_threads: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]  # noqa: SLF001
"""Waits for the threads that are not daemons, as the interpreter does at its end."""
GeneratorContext: Any = contextlib._GeneratorContextManager  # noqa: SLF001
"""What ``contextmanager`` returns; its ``gen`` is public by its documentation's example only."""
AnyGeneratorContext: Any = contextlib._GeneratorContextManagerBase  # noqa: SLF001
"""The same for ``asynccontextmanager``, too."""
RESULTS_FILE = str(concurrent.futures._base.__file__)  # noqa: SLF001
"""The file in which threads wait for the results of futures."""

LINKS = {"shield.<locals>._outer_done_callback", "_chain_future.<locals>._call_check_cancel"}
"""Callbacks by which asyncio links a future to the future that it stands for."""
RESULT_LINK = "_chain_future.<locals>._call_set_state"
"""The callback by which asyncio passes the result of a task to the future that stands for it."""
_GATHER_LINK, _ANYIO_LINK = "gather.<locals>._done_callback", "TaskGroup._spawn.<locals>.task_done"
"""The callbacks by which asyncio and anyio pass the end of a task to the future or group that it belongs to."""
UNLIMITED_WAIT = "waiter.acquire()"
"""The line of threading at which a thread waits without a limit."""


def awaited_by(task: Any) -> Any:
    """The future that a suspended asyncio task awaits; None if it awaits none."""
    return getattr(task, "_fut_waiter", None)


def gathered_by(future: Any) -> Iterable[Any]:
    """The futures that asyncio.gather() has put into one."""
    return getattr(future, "_children", ())


def _callbacks_of(future: Any) -> list[Any]:
    return [each for each, _ in getattr(future, "_callbacks", None) or ()]


def linked_to(future: Any, *names: str) -> list[Any]:
    """What the callbacks with some qualified names (``LINKS``) of an asyncio future refer to."""
    return closed_over([each for each in _callbacks_of(future) if getattr(each, "__qualname__", "") in names])


def closed_over(functions: Iterable[Any]) -> list[Any]:
    """The values of closures."""
    return [cell.cell_contents for each in functions for cell in getattr(each, "__closure__", None) or ()]


def is_limited_by_wait_for(future: Any) -> bool:
    """Whether asyncio.wait_for() cancels an asyncio future at a time limit, up to Python 3.11."""
    functions = [each.func for each in _callbacks_of(future) if type(each) is partial]
    return "_release_waiter" in [getattr(each, "__qualname__", "") for each in functions]


def cancelled_with(future: Any) -> list[Any]:
    """The tasks and futures whose cancellation cancels an asyncio future: they await it, gather it or group it."""
    its = [getattr(each, "__self__", None) for each in _callbacks_of(future)]
    # By type(): isinstance() evaluates the lazy objects of Django, and callbacks may be methods of any objects.
    its = [each for each in its if issubclass(type(each), asyncio.Future | asyncio.TaskGroup)]
    its += linked_to(future, _GATHER_LINK, _ANYIO_LINK)
    groups = [getattr(each, "_parent_task", None) for each in its]
    anyio_groups = [getattr(getattr(each, "cancel_scope", None), "_host_task", None) for each in its]
    return [each for each in (*its, *groups, *anyio_groups) if asyncio.isfuture(each) and each is not future]


waiters_for: Callable[[Any], Collection[Any]] = attrgetter("_condition._waiters")
"""The locks at which threads wait for the result of a concurrent future; threads change this table."""


def loop_thread(loop: Any) -> int:
    """The thread in which an event loop runs; 0 if it runs nowhere, or is not asyncio's own."""
    return getattr(loop, "_thread_id", None) or 0


# --- pools and bridges ------------------------------------------------------------------------------------------------

CANCEL_SCOPES = {"anyio._backends._asyncio", "async_timeout"}
"""Modules with objects whose blocks are cancelled at a ``deadline``, besides asyncio's own."""
BRIDGES = {"anyio._backends._asyncio", "anyio.from_thread", "asgiref.sync"}
"""Modules with the coroutines that call another one for a thread, in a separate task."""
RUNNERS = {
    "anyio._backends._asyncio",
    "asgiref.current_thread_executor",
    "asgiref.sync",
    "concurrent.futures.process",
    "concurrent.futures.thread",
    "eventlet.tpool",
    "gevent.threadpool",
    "multiprocessing.pool",
    "trio._threads",
    "twisted.python.threadpool",
}
"""Modules with the functions that call a job's own one."""
_ASGIREF = {"asgiref.sync"}
_WITH_FUTURES = {"anyio._backends._asyncio", "asgiref.current_thread_executor", "concurrent.futures.thread"}


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The local variables of a function of another library, by their names.

    Up to Python 3.12 ``f_locals`` keeps the values of all local variables until the frame ends, which in the loop of a
    pool's thread is the thread's end. So it is emptied, unless a debugger is about to write it back.
    """
    its = frame.f_locals
    found = dict(its)
    is_copy = type(its) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and frame.f_trace is None:
        its.clear()
    return found


def local(frame: FrameType, name: str) -> Any:
    """A local variable of a function of another library; None if it has none of this name."""
    return locals_of(frame).get(name)


def _runs(frame: FrameType, modules: Collection[str], *functions: str) -> bool:
    return frame.f_code.co_name in functions and frame.f_globals.get("__name__") in modules


def job_of(frame: FrameType) -> Any:
    """The future of the job that a frame of a pool executes; None for another frame."""
    if not _runs(frame, _WITH_FUTURES, "run"):
        return None
    return getattr(local(frame, "self"), "future", None) or local(frame, "future")


def group_ended_in(frame: FrameType) -> Iterable[Any]:
    """The tasks of an asyncio.TaskGroup that a frame waits for at the end of its block."""
    ends = _runs(frame, {"asyncio.taskgroups"}, "__aexit__", "_aexit")
    return local(frame, "self")._tasks if ends else ()  # noqa: SLF001


def run_until_complete(frame: FrameType) -> Any:
    """The future for which a frame of an event loop, or of nest_asyncio's, runs the loop; None for another frame."""
    if frame.f_code.co_name != "run_until_complete":
        return None
    return local(frame, "f") or local(frame, "future")


def tasks_run_in(frame: FrameType) -> Iterable[Any]:
    """The tasks that async_to_sync() runs for the function that a frame of sync_to_async() awaits."""
    return (local(frame, "task_context") or ()) if _runs(frame, _ASGIREF, "__call__") else ()


def called_at_end(frame: FrameType) -> list[Any] | None:
    """What the callbacks of the result of async_to_sync() refer to, in the frame of its task; none where it has made
    the loop. None for another frame."""
    if not _runs(frame, _ASGIREF, "main_wrap"):
        return None
    return closed_over(local(frame, "call_result")._done_callbacks)  # noqa: SLF001


def loop_handling(frame: FrameType) -> Any:
    """The loop for which a frame of sync_to_async() executes a function; None for another frame."""
    return local(frame, "loop") if _runs(frame, _ASGIREF, "thread_handler") else None


def executor_thread(executor: Any) -> int | None:
    """The thread that async_to_sync() blocks, and in which this executor runs functions."""
    return executor._work_thread.ident  # type: ignore[no-any-return]  # noqa: SLF001


def is_thread_sensitive(runner: Any) -> bool:
    """Whether a SyncToAsync runs its functions in the thread of a request."""
    return bool(getattr(runner, "_thread_sensitive", False))


# --- Django and what builds on it -------------------------------------------------------------------------------------

LEFT_OUT = "_non_atomic_requests"
"""The attribute of a view with the databases on which ATOMIC_REQUESTS opens no transaction."""
READ_USER, AREAD_USER = "_cached_user", "_acached_user"
"""The attributes of a request with the user that sync or async code has read."""
WRAPPED_REQUEST = "_request"
"""The attribute of a request of Django REST framework with Django's own."""

databases_of_thread: Callable[[], Mapping[str, Any]] = partial(
    vars,
    connections._connections._storage,  # type: ignore[attr-defined]  # noqa: SLF001
)
"""Returns the running thread's connections to databases, by alias; those of event loops are behind one more value.
Public ways to them take microseconds."""
unwrapped: Callable[[Any], Any] = attrgetter("_wrapped")
"""The object for which a LazyObject stands; ``empty`` if it has not been made."""
wrapped_request: Callable[[Any], Any] = attrgetter(WRAPPED_REQUEST)
state_of: Callable[[Any], Any] = attrgetter("_state")
"""The ModelState of an instance."""
resource_closers: Callable[[Any], list[Callable[[], Any]]] = attrgetter("_resource_closers")
"""The functions that a response calls in close(), before it signals that the request has ended."""
admins_of: Callable[[Any], dict[Any, Any]] = attrgetter("_registry")
"""The admin classes of an admin site, by model."""
own_client: Callable[[Any], Any] = attrgetter("_cache")
"""The client through which a cache of Django's own backend sends its commands."""


def unwrap(lazy: Any) -> Any:
    """Make the object for which a LazyObject stands, at once, and return it."""
    lazy._setup()  # noqa: SLF001
    return unwrapped(lazy)


def wrap_again(lazy: Any, empty: object) -> None:
    """Let the next access to a LazyObject make its object again."""
    lazy._wrapped = empty  # noqa: SLF001


def is_of_test_case(block: Any) -> bool:
    """Whether a TestCase has opened an atomic block around its tests."""
    return getattr(block, "_from_testcase", False)


def is_test() -> bool:
    """Whether Django's test environment is set up in this process."""
    tests = sys.modules.get("django.test.utils")
    return tests is not None and hasattr(tests._TestState, "saved_data")  # noqa: SLF001


def is_parallel_test_process() -> bool:
    """Whether Django's test runner has started this process to run some of the tests."""
    return bool(getattr(sys.modules.get("django.test.runner"), "_worker_id", 0))


def primary_url(cache: Any) -> str:
    """The URL of a django-redis cache's primary."""
    return cache.client._server[0]  # type: ignore[no-any-return]  # noqa: SLF001


def has_bound_routers(api: Any) -> bool:
    """Whether the URLs of a NinjaAPI exist already."""
    return getattr(api, "_bound_routers_cache", None) is not None


bound_routers: Callable[[Any], Iterable[Any]] = methodcaller("_get_bound_routers")
"""The routers of a NinjaAPI, with all their operations."""


def replace_urls(api: Any, make: Callable[[Callable[[], Any]], Any]) -> None:
    """Let ``make``, called with the former function, make the URLs of a NinjaAPI."""
    former = api._get_urls  # noqa: SLF001
    vars(api)["_get_urls"] = lambda: make(former)


def message_options(task: Any) -> dict[str, Any]:
    """The options with which Celery sends a task's messages, besides those of the call."""
    return task._get_exec_options()  # type: ignore[no-any-return]  # noqa: SLF001


# --- redis-py ---------------------------------------------------------------------------------------------------------

_parse_error: Callable[[str], RedisError] = getattr(redis.cluster, "ClusterParser", BaseParser).parse_error
"""ClusterParser is the first to know all errors until redis-py 6."""
_WRAPPED = r"(?s)ERR Error running script \(call to \w+\): (?:@user_script: ?\d+: )*-?(.*)"
"""The form in which Redis 6.2 reports an error inside a script."""
TLS_STEP = "_wrap_socket_with_ssl"
"""The method of a connection that does the TLS handshake."""
_MADE_BY = {("ssl", "_create"): "self", ("redis.connection", TLS_STEP): "sslsock"}
"""The functions that make a socket for TLS, and their variable for it."""


def server_error(text: str) -> RedisError:
    """Return redis-py's exception for the text of an error reply; for a script's error, that of the command in it."""
    wrapped = re.fullmatch(_WRAPPED, text)
    return _parse_error(text if wrapped is None else wrapped[1].strip())


def abandoned_socket(frame: FrameType) -> Any:
    """The socket for TLS that a function of ssl or redis-py has made, and not returned because of an error; None for
    another function, which may keep its sockets."""
    variable = _MADE_BY.get((str(frame.f_globals.get("__name__")), frame.f_code.co_name))
    return None if variable is None else local(frame, variable)


def take_socket(connection: Any) -> socket.socket:
    """Take the socket from a connection that redis-py has opened and logged in; the connection no longer has it."""
    sock: socket.socket | None = connection._sock  # noqa: SLF001
    if sock is None:
        raise RedisConnectionError("The connection was not set up completely.")
    connection._sock = None  # noqa: SLF001
    # The connection's parser would read on from the socket, or close it when it is collected.
    connection._parser.on_disconnect()  # noqa: SLF001
    return sock
