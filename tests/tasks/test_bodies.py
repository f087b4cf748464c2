"""The lock is around the body, once, whatever else is around the task."""

import inspect
import types
import uuid
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer, reset_worker_optimizations, setup_worker_optimizations
from celery.exceptions import Ignore

from django_rlock import FairLock, LockLostError, LockTimeoutError, LockUnavailableError
from django_rlock.celery import LockedTask
from django_rlock.signals import lock_acquired
from tests.celery_app import records, tasks
from tests.celery_app.records import starts
from tests.heard import heard, lock_name
from tests.operators import free_by_force
from tests.tasks.test_losses import go


@pytest.fixture
def app():
    with Celery("bodies", broker="memory://", set_as_current=False) as made:
        yield made
        reset_worker_optimizations(made)


@pytest.fixture
def taken():
    """The names of the locks that are taken."""
    with heard(lock_acquired, note=lock_name) as names:
        yield names


calls: list[str] = []
"""The calls that went through the ``__call__`` of a base."""


class Runs(Task[..., Any]):
    """As in Celery's documentation."""

    abstract = True

    def __call__(self, *args, **kwargs):
        calls.append("base")
        return self.run(*args, **kwargs)


class Super(Task[..., Any]):
    abstract = True

    def __call__(self, *args, **kwargs):
        calls.append("base")
        return super().__call__(*args, **kwargs)


class Own(LockedTask[..., Any]):
    def __call__(self, *args, **kwargs):
        calls.append("base")
        return self.run(*args, **kwargs)


class Late:
    def __call__(self):
        """What Celery's own __call__ does not go on to."""


class OfOwn(Own):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class Twice(LockedTask[..., Any]):
    def __call__(self, *args, **kwargs):
        calls.append("base")
        self.run(*args, **kwargs)
        return self.run(*args, **kwargs)


BASES: dict[str, Any] = {
    "alone": LockedTask,
    "runs first": type("A", (Runs, LockedTask), {}),
    "runs last": type("B", (LockedTask, Runs), {}),
    "super first": type("C", (Super, LockedTask), {}),
    "super last": type("D", (LockedTask, Super), {}),
    "own": Own,
    "of own": OfOwn,
    "twice": Twice,
}


def as_worker(task: Any, *args):
    """Run a message as a worker does."""
    task = task._get_current_object() if hasattr(task, "_get_current_object") else task
    setup_worker_optimizations(task.app)
    request: dict[str, Any] = {"id": uuid.uuid4().hex, "delivery_info": {}, "rlock_received": 0.0, "is_eager": False}
    outcome = build_tracer(task.name, task, app=task.app)(request["id"], list(args), {}, request)
    return outcome.retval if outcome.info is None else outcome.info.retval


WAYS = {
    "message": as_worker,
    "eager": lambda task, *args: task.apply(args).get(),
    "plain": lambda task, *args: task(*args),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def made(app, base=LockedTask, **options):
    def body(self, key, depth=0):
        self.lock.check()
        return self.lock.name, self.request.id is None, self.request.called_directly

    return app.task(base=base, bind=True, shared=False, lock_key="job:<key>", **{"name": "job", **options})(body)


@pytest.mark.parametrize("base", BASES)
def test_every_way_to_run_takes_the_lock_once(app, taken, way, base):
    calls.clear()
    task = made(app, BASES[base])
    result = way(task, 7)
    assert taken == ["job:7"] * (2 if base == "twice" else 1)
    assert calls == ([] if base == "alone" else ["base"])
    if way is not as_worker:
        assert result[0] == "job:7"
        assert result[1:] == ((True, True) if way is WAYS["plain"] else (False, False))
    assert not FairLock("job:7").locked()


@pytest.mark.parametrize("task", [tasks.skips_within_a_call, tasks.skips_within_a_call_of_a_later_base])
def test_a_worker_locks_what_a_call_of_a_base_runs(worker, log, task):
    first = task.delay(log, gated=True)
    starts(log, 1)
    assert task.delay(log).get(timeout=records.WAIT) is None
    go(log)
    assert first.get(timeout=records.WAIT) == f"done {log}"
    assert records.count(f"{log}:calls") == 2
    assert not records.count(f"{log}:starts")


def test_a_call_that_no_order_of_the_bases_reaches_is_refused(app):
    with pytest.raises(TypeError, match=r"job: Late.__call__ is never called.* 'class MyTask\(Late, LockedTask\)'"):

        class Job(LockedTask[..., Any], Late):
            name = "job"


@pytest.mark.parametrize("base", [each for each in BASES if each != "twice"])
def test_calls_within_the_body(app, taken, way, base):
    def body(self, key, depth):
        if depth:
            self.run(key, 0)  # no lock
            self(key + 1, 0)
            self.run(key, 0)
        self.lock.check()
        return self.lock.name

    task = app.task(base=BASES[base], bind=True, shared=False, name="job", lock_key="job:<key>")(body)
    way(task, 7, 1)
    assert taken == ["job:7", "job:8"]


def test_bodies_of_classes(app, taken, way):
    class First(LockedTask[..., Any]):
        name, lock_key = "first", "job:<key>"

        def run(self, key):
            return [self.lock.name]

    class Second(First):
        name = "second"

        def run(self, key):
            return [*super().run(key), "second"]

    class Mixin:
        def run(self, key):
            return [self.lock.name, "mixin"]  # type: ignore[attr-defined]

    class Third(Mixin, LockedTask[..., Any]):
        name, lock_key = "third", "job:<key>"

    for kind in (First, Second, Third):
        taken.clear()
        task = app.register_task(kind())
        way(task, 7)
        assert taken == ["job:7"], kind


@pytest.mark.parametrize("attribute", ["@run", "@__call__"])
@pytest.mark.parametrize("base", ["alone", "own"])
def test_annotations_are_around_the_lock_or_inside(app, taken, way, attribute, base):
    def around(function):
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    app.conf.task_annotations = {"*": {attribute: around}}
    way(made(app, BASES[base]), 7)
    assert taken == ["job:7"]


def wrapped_by_sentry(task, has_call):
    def wrap(function):
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    if has_call:
        type(task).__call__ = wrap(type(task).__call__)
    else:
        task.run = wrap(task.run)


@pytest.mark.parametrize("base", [each for each in BASES if each != "twice"])
@pytest.mark.parametrize("has_call", [True, False])
def test_wrapped_from_outside(app, taken, base, has_call):
    task = made(app, BASES[base])
    task.name  # noqa: B018 - makes it
    wrapped_by_sentry(app.tasks["job"], has_call)
    as_worker(task, 7)
    assert taken == ["job:7"]


class Passed:
    """A wrapper around a task, as New Relic's: its run is its call."""

    def __init__(self, task):
        self.__dict__["task"] = task

    def __getattr__(self, name):
        return getattr(self.task, name)

    __class__ = property(lambda self: type(self.task))

    def run(self, *args, **kwargs):
        return self.task(*args, **kwargs)

    __call__ = run


@pytest.mark.parametrize("base", [each for each in BASES if each != "twice"])
def test_a_wrapper_whose_run_is_a_call(app, taken, base):
    made(app, BASES[base]).name  # noqa: B018
    as_worker(Passed(app.tasks["job"]), 7)
    assert taken == ["job:7"]


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("kind", [LockTimeoutError, LockUnavailableError, LockLostError])
def test_autoretry_sees_the_errors_of_the_lock(app, kind, registers, own_server):
    attempts: list[Any] = []
    server = own_server() if kind is LockUnavailableError else None

    class Noted(LockedTask[..., Any]):
        def retry(self, *args, exc=None, **kwargs):  # what autoretry_for calls
            attempts.append(type(exc))
            raise Ignore

    def run(self):
        free_by_force("job")

    if server:
        server.kill()
    elif kind is LockLostError:
        with FairLock("another"):
            pass
    options = {"name": "job", "lock_key": "job", "on_locked": "raise"}
    if registers:
        task = app.register_task(type("Job", (Noted,), {**options, "run": run})(), autoretry_for=(kind,))
    else:
        task = app.task(base=Noted, bind=True, shared=False, autoretry_for=(kind,), **options)(run)
    other = FairLock("job", owner="another", lease_time=60)
    if kind is LockTimeoutError:
        other.acquire()
    task.apply()
    assert attempts == [kind]
    if kind is LockTimeoutError:
        other.release()


def test_validated_arguments_and_a_static_body(app, taken, way):
    pydantic = pytest.importorskip("pydantic")
    order_model = pydantic.create_model("Order", number=(int, ...))

    def ship(order):
        return type(order).__name__

    ship.__annotations__ = {"order": order_model}
    task = app.task(base=LockedTask, shared=False, pydantic=True, name="ship", lock_key="<order.number>")(ship)
    way(task, {"number": 7})
    assert taken == ["7"]


def on_class(app):
    class Job(LockedTask[..., Any]):
        name = "job"

        def run(self, key: int, *, fast: bool = False) -> str:
            """Do it."""
            return "done"

    return app.register_task(Job())


def bound(app):
    @app.task(base=LockedTask, bind=True, name="job", shared=False)
    def job(self, key: int, *, fast: bool = False) -> str:
        """Do it."""
        return "done"

    return app.tasks["job"]


def unbound(app):
    @app.task(base=LockedTask, name="job", shared=False)
    def job(key: int, *, fast: bool = False) -> str:
        """Do it."""
        return "done"

    return app.tasks["job"]


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("make", [on_class, bound, unbound])
def test_inspection_finds_the_body(app, taken, make, annotated):
    """Although Celery's annotations look behind what a function wraps."""
    if annotated:

        def around(run):
            @wraps(run)
            def wrapper(*args, **kwargs):
                return run(*args, **kwargs)

            return wrapper

        app.conf.task_annotations = {"*": {"@run": around}}
    task = make(app)
    assert str(inspect.signature(task.run)) == "(key: int, *, fast: bool = False) -> str"
    assert inspect.getsource(task.run).endswith('return "done"\n')
    assert task.run.__doc__ == "Do it."
    assert task(7, fast=True) == "done"
    assert len(taken) == 1


class Collects(Task[..., Any]):
    """As the class of celery-batches: a strategy of its own collects messages for a run."""

    def Strategy(self, task, app, consumer):  # type: ignore[override]
        """Return a function that handles a message."""


@pytest.mark.parametrize("bases", [(Collects, LockedTask), (LockedTask, Collects)])
def test_a_base_that_runs_many_messages_at_once_is_refused(bases):
    with pytest.raises(TypeError, match="Batch: Collects runs many messages at once"):
        types.new_class("Batch", bases)
