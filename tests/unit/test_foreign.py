"""The private names of other libraries that this package reads: each test is named after its reader, and fails if a
release of that library has renamed or changed what the reader reads."""

import ast
import asyncio
import contextlib
import gc
import linecache
import multiprocessing
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import django_redis.cache
import pytest
import redis
from asgiref.current_thread_executor import CurrentThreadExecutor
from asgiref.sync import async_to_sync, sync_to_async
from celery import Celery
from django.contrib import admin
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.cache import SessionStore
from django.core.cache.backends.redis import RedisCache
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory, TestCase
from django.utils.functional import SimpleLazyObject, empty
from ninja import NinjaAPI, Router
from rest_framework.request import Request

from django_rlock._core import foreign
from django_rlock._core.redis_py import connection_of
from django_rlock._transport.servers import get_client
from django_rlock.models import Lock
from tests.locks.test_jobs import by_eventlet, by_gevent, by_trio, by_twisted

Task = asyncio.Task[Any]


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def coroutine_frames(task: Task | None) -> list[FrameType]:
    found: list[FrameType] = []
    coro: Any = task and task.get_coro()
    while coro is not None and (frame := getattr(coro, "cr_frame", None)) is not None:
        found.append(frame)
        coro = coro.cr_await
    return found


def suspended() -> Task:
    return asyncio.ensure_future(asyncio.sleep(3600))


def test_each_reader_has_a_test() -> None:
    body = ast.parse(Path(foreign.__file__).read_text(encoding="utf-8")).body
    named = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    named += [each.target.id for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    targets = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
    named += [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    readers = {name.lower() for name in named if not name.startswith("_")}
    assert readers == {name.removeprefix("test_") for name in globals() if name.startswith("test_")} - {
        "each_reader_has_a_test"
    }


# --- Python -----------------------------------------------------------------------------------------------------------


async def in_loop() -> bool:
    return foreign.running_loop() is asyncio.get_running_loop()


def test_running_loop() -> None:
    assert asyncio.run(in_loop())
    assert foreign.running_loop() is None


def test_end_threads() -> None:
    assert callable(foreign.end_threads)


def test_generatorcontext() -> None:
    made = contextlib.contextmanager(lambda: iter(()))()
    assert isinstance(made, foreign.GeneratorContext)
    assert hasattr(made, "gen")


def test_anygeneratorcontext() -> None:
    async def block():
        yield

    assert isinstance(contextlib.asynccontextmanager(block)(), foreign.AnyGeneratorContext)
    assert issubclass(foreign.GeneratorContext, foreign.AnyGeneratorContext)


def stack_of_waiter(future: Future[None]) -> list[tuple[str, str, str]]:
    """The innermost calls of a thread that waits for a future: file, function and line."""
    waiting = threading.Thread(target=future.result)
    waiting.start()
    while not foreign.waiters_for(future):
        pass
    found: list[tuple[str, str, str]] = []
    while not found or "acquire" not in found[0][2]:  # until it sleeps
        frame: FrameType | None = sys._current_frames()[waiting.ident or 0]
        found = []
        while frame is not None:
            code = frame.f_code
            found.append((code.co_filename, code.co_name, linecache.getline(code.co_filename, frame.f_lineno).strip()))
            frame = frame.f_back
    future.set_result(None)
    waiting.join()
    return found


def test_results_file() -> None:
    innermost, second, *_ = stack_of_waiter(Future())
    assert innermost[:2] == (threading.__file__, "wait")
    assert second[:2] == (foreign.RESULTS_FILE, "result")


def test_unlimited_wait() -> None:
    assert stack_of_waiter(Future())[0][2] == foreign.UNLIMITED_WAIT


def test_waiters_for() -> None:
    assert not foreign.waiters_for(Future())
    stack_of_waiter(Future())  # ends when a waiter was seen


def test_awaited_by() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await future

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        assert foreign.awaited_by(task) is future
        future.set_result(None)
        await task

    asyncio.run(main())


def test_gathered_by() -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(2)]
        both = asyncio.gather(*tasks)
        assert [*foreign.gathered_by(both)] == tasks
        await both

    asyncio.run(main())


def test_links() -> None:
    async def main() -> None:
        task = suspended()
        shielded = asyncio.shield(task)
        assert task in foreign.linked_to(shielded, *foreign.LINKS)
        job: Future[None] = Future()
        assert job in foreign.linked_to(asyncio.wrap_future(job), *foreign.LINKS)
        job.set_result(None)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


test_linked_to = test_links


def test_result_link() -> None:
    async def main() -> bool:
        task = asyncio.current_task()
        return any(isinstance(each, Future) for each in foreign.linked_to(task, foreign.RESULT_LINK))

    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    assert asyncio.run_coroutine_threadsafe(main(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


def test_cancelled_with() -> None:
    async def await_it(awaited: Any) -> None:
        await awaited

    async def main() -> None:
        task, me = suspended(), asyncio.current_task()
        waiting = asyncio.ensure_future(await_it(task))
        gathered = asyncio.gather(task)
        shielded = asyncio.shield(task)
        await asyncio.sleep(0)
        assert {*foreign.cancelled_with(task)} == {waiting, gathered}
        gathered.cancel()
        await asyncio.wait({waiting, asyncio.ensure_future(await_it(shielded))})
        await asyncio.gather(gathered, return_exceptions=True)

        async with asyncio.TaskGroup() as group:
            assert foreign.cancelled_with(group.create_task(asyncio.sleep(0))) == [me]
        async with anyio.create_task_group() as others:
            others.start_soon(asyncio.sleep, 0)
            (other,) = asyncio.all_tasks() - {me}
            assert foreign.cancelled_with(other) == [me]

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="wait_for() makes a task up to Python 3.11")
def test_is_limited_by_wait_for() -> None:
    async def main() -> None:
        task = suspended()
        limited = asyncio.ensure_future(asyncio.wait_for(task, 60))
        await asyncio.sleep(0)
        assert foreign.is_limited_by_wait_for(task)
        assert not foreign.is_limited_by_wait_for(limited)
        task.cancel()
        await asyncio.wait([limited])

    asyncio.run(main())


def test_closed_over() -> None:
    value = object()
    assert foreign.closed_over([lambda: value]) == [value]
    assert foreign.closed_over([print]) == []


def test_loop_thread() -> None:
    async def main() -> int:
        return foreign.loop_thread(asyncio.get_running_loop())

    assert asyncio.run(main()) == threading.get_ident()
    loop = asyncio.new_event_loop()
    assert foreign.loop_thread(loop) == 0
    loop.close()


# --- pools and bridges ------------------------------------------------------------------------------------------------


def modules() -> set[str]:
    return {str(each.f_globals.get("__name__")) for each in frames()}


def in_pools() -> set[str]:
    """The modules around a job of each kind of pool."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        caller = processes.submit(eval, "__import__('sys')._getframe(1).f_globals['__name__']").result()
    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        found = [executor.submit(modules).result(), pool.apply(modules), anyio.run(anyio.to_thread.run_sync, modules)]
    for by_library in (by_eventlet, by_gevent, by_trio, by_twisted):
        with by_library() as run:
            found.append(run(modules))
    return {str(caller)}.union(*found)


def test_bridges() -> None:
    async def main() -> set[str]:
        return modules()

    with anyio.from_thread.start_blocking_portal() as portal:
        found = portal.call(main) | async_to_sync(main)()
    found |= anyio.run(anyio.to_thread.run_sync, anyio.from_thread.run, main)
    assert found >= foreign.BRIDGES


def test_runners() -> None:
    async def main() -> set[str]:
        found: set[str] = await sync_to_async(modules)()
        return found

    assert in_pools() | async_to_sync(main)() >= foreign.RUNNERS


def test_cancel_scopes() -> None:
    async def main() -> str:
        with anyio.fail_after(60) as scope:
            await anyio.lowlevel.checkpoint()
            assert scope.deadline > 0
            return type(scope).__module__

    assert anyio.run(main) in foreign.CANCEL_SCOPES


def test_locals_of() -> None:
    value = object()
    found = foreign.locals_of(sys._getframe())
    assert found == {"value": value}


def test_local() -> None:
    value = object()
    assert foreign.local(sys._getframe(), "value") is value
    assert foreign.local(sys._getframe(), "unknown") is None


def job() -> Any:
    return next((found for each in frames() if (found := foreign.job_of(each)) is not None), None)


def test_job_of() -> None:
    async def main() -> list[object]:
        return [await sync_to_async(job)(), await anyio.to_thread.run_sync(job)]

    with ThreadPoolExecutor(1) as executor:
        submitted = executor.submit(job)
        assert submitted.result() is submitted
    assert all(isinstance(each, Future | asyncio.Future) for each in async_to_sync(main)())


def test_group_ended_in() -> None:
    async def main() -> None:
        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(inner())

        async def inner() -> None:
            await asyncio.sleep(0)
            found = [each for frame in coroutine_frames(outer) for each in foreign.group_ended_in(frame)]
            assert found == [asyncio.current_task()]

        outer = asyncio.ensure_future(group())
        await outer

    asyncio.run(main())


def test_run_until_complete() -> None:
    async def main() -> bool:
        return asyncio.current_task() in [foreign.run_until_complete(each) for each in frames()]

    assert asyncio.run(main())


def test_tasks_run_in() -> None:
    async def main() -> None:
        outer = asyncio.current_task()

        async def inner() -> bool:
            found = [each for frame in coroutine_frames(outer) for each in foreign.tasks_run_in(frame)]
            return asyncio.current_task() in found

        assert await sync_to_async(async_to_sync(inner))()

    asyncio.run(main())


def test_called_at_end() -> None:
    async def main() -> None:
        async def inner() -> list[object]:
            # The thread blocks, and leaves its executor in a callback, after it has started the task.
            while not (found := [each for frame in frames() for each in foreign.called_at_end(frame) or ()]):  # noqa: ASYNC110
                await asyncio.sleep(0)
            return found

        assert any(isinstance(each, CurrentThreadExecutor) for each in await sync_to_async(async_to_sync(inner))())

    asyncio.run(main())


def test_executor_thread() -> None:
    assert foreign.executor_thread(CurrentThreadExecutor(None)) == threading.get_ident()


def test_loop_handling() -> None:
    def handled() -> set[object]:
        return {foreign.loop_handling(each) for each in frames()} - {None}

    async def main() -> None:
        assert await sync_to_async(handled)() == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_is_thread_sensitive() -> None:
    assert foreign.is_thread_sensitive(sync_to_async(print))
    assert not foreign.is_thread_sensitive(sync_to_async(print, thread_sensitive=False))


# --- Django and what builds on it -------------------------------------------------------------------------------------


def test_databases_of_thread() -> None:
    alias = "test_databases_of_thread"
    connection: Any = object()
    connections[alias] = connection
    try:
        assert foreign.databases_of_thread()[alias] is connection
    finally:
        del connections[alias]
    assert alias not in foreign.databases_of_thread()


def test_left_out() -> None:
    view = transaction.non_atomic_requests(lambda request: None)
    assert getattr(view, foreign.LEFT_OUT) == {"default"}


def logged_out(rf: RequestFactory):
    request = rf.get("/")
    request.session = SessionStore()
    AuthenticationMiddleware(lambda _: HttpResponse()).process_request(request)
    return request


def test_read_user(rf: RequestFactory) -> None:
    request = logged_out(rf)
    assert isinstance(request.user, AnonymousUser)
    assert foreign.READ_USER in vars(request)


def test_aread_user(rf: RequestFactory) -> None:
    request = logged_out(rf)
    asyncio.run(request.auser())
    assert foreign.AREAD_USER in vars(request)


def test_wrapped_request(rf: RequestFactory) -> None:
    request = rf.get("/")
    assert foreign.wrapped_request(Request(request)) is request
    assert foreign.WRAPPED_REQUEST in vars(Request(request))


def test_unwrapped() -> None:
    lazy = SimpleLazyObject(lambda: 3)
    assert foreign.unwrapped(lazy) is empty
    assert lazy + 1 == 4
    assert foreign.unwrapped(lazy) == 3


def test_unwrap() -> None:
    assert foreign.unwrap(SimpleLazyObject(lambda: 3)) == 3


def test_wrap_again() -> None:
    lazy = SimpleLazyObject(iter([1, 2]).__next__)
    assert foreign.unwrap(lazy) == 1
    foreign.wrap_again(lazy, empty)
    assert foreign.unwrap(lazy) == 2


def test_state_of() -> None:
    assert foreign.state_of(Lock()).adding


@pytest.mark.django_db
def test_resource_closers() -> None:
    closed: list[int] = []
    response = StreamingHttpResponse([])
    foreign.resource_closers(response).append(lambda: closed.append(1))
    response.close()
    assert closed == [1]


def test_admins_of() -> None:
    assert Lock in foreign.admins_of(admin.site)


@pytest.mark.django_db
def test_is_of_test_case() -> None:
    case: Any = TestCase
    made = case._enter_atomics()
    assert all(map(foreign.is_of_test_case, made.values()))
    case._rollback_atomics(made)
    assert not foreign.is_of_test_case(transaction.atomic())


def test_is_test(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.test import utils

    assert foreign.is_test()  # pytest-django has set it up
    monkeypatch.delattr(utils._TestState, "saved_data")
    assert not foreign.is_test()


def test_is_parallel_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.test import runner

    assert not foreign.is_parallel_test_process()
    monkeypatch.setattr(runner, "_worker_id", 1)  # raises if Django has none
    assert foreign.is_parallel_test_process()


def test_primary_url() -> None:
    assert foreign.primary_url(django_redis.cache.RedisCache("redis://here:1/0", {})) == "redis://here:1/0"


def test_own_client() -> None:
    assert foreign.own_client(RedisCache("redis://here:1/0", {})).get_client


def test_has_bound_routers() -> None:
    api = NinjaAPI(urls_namespace="foreign")
    assert not foreign.has_bound_routers(api)
    assert api.urls
    assert foreign.has_bound_routers(api)


def test_bound_routers() -> None:
    api = NinjaAPI(urls_namespace="foreign")
    router = Router()
    router.get("/here")(lambda request: None)
    api.add_router("/there", router)
    assert "/here" in [path for each in foreign.bound_routers(api) for path in each.path_operations]


def test_replace_urls() -> None:
    def make(former: Callable[[], object]) -> object:
        asked.append(former)
        return former()

    api, asked = NinjaAPI(urls_namespace="foreign"), list[object]()
    foreign.replace_urls(api, make)
    assert api.urls
    assert len(asked) == 1


def test_message_options() -> None:
    app: Any = Celery("foreign", set_as_current=False)

    def job() -> None: ...

    assert foreign.message_options(app.task(job, name="job", time_limit=7, shared=False))["time_limit"] == 7


# --- redis-py ---------------------------------------------------------------------------------------------------------


def test_server_error() -> None:
    assert type(foreign.server_error("MOVED 1 here:1")) is redis.exceptions.MovedError
    assert type(foreign.server_error("NOSCRIPT none")) is redis.exceptions.NoScriptError


def test_tls_step() -> None:
    assert callable(getattr(redis.SSLConnection, foreign.TLS_STEP))


def test_abandoned_socket() -> None:
    assert "sslsock" in getattr(redis.SSLConnection, foreign.TLS_STEP).__code__.co_varnames
    own, other = socket.socketpair()
    other.close()
    with own, pytest.raises(OSError) as caught:  # noqa: PT011 - it depends on the system
        ssl.create_default_context().wrap_socket(own, server_hostname="localhost")
    frames = [frame for frame, _ in walk_tb(caught.value.__traceback__)]
    (made,) = filter(None, map(foreign.abandoned_socket, frames))
    assert isinstance(made, ssl.SSLSocket)
    made.close()


def test_take_socket() -> None:
    pool = get_client().connection_pool
    connection = connection_of(pool)
    connection.connect()
    sock = foreign.take_socket(connection)
    assert sock.fileno() >= 0
    with pytest.raises(redis.ConnectionError, match="not set up"):
        foreign.take_socket(connection)
    del connection
    gc.collect()
    assert sock.fileno() >= 0
    sock.close()
