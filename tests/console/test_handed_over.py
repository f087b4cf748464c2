"""A lock that a process has handed over still tells whose request took it, and when: "who edits since when"."""

from collections.abc import Callable
from uuid import uuid4

import pytest
import redis

from django_rlock import rlock
from django_rlock._monitoring.reporter import MAX_HANDED_OVER
from django_rlock.inspection import Holder, LockState, iter_locks, lock_info
from django_rlock.locks.records import Work
from tests.console.processes import Process
from tests.console.reporting import Clock, report_of
from tests.console.test_inspection import fall_silent
from tests.eventually import eventually

DOCUMENT = "document:42"
EDIT = {"route": "GET /edit/<pk>/", "user": "7"}
SAVE = {"route": "POST /save/<pk>/", "user": "8"}


@pytest.fixture
def editor() -> str:
    """An owner's name, new for each hold as it should be."""
    return str(uuid4())


def edit(editor: str) -> None:
    with Work(EDIT):
        lock = rlock(DOCUMENT, owner=editor, lease_time=120)
        lock.acquire()
        lock.hand_over()


def reported(is_wanted: Callable[[Holder], object] = lambda holder: holder.since) -> Holder:
    """The holder, once a report says of it what is wanted."""

    def found() -> Holder | None:
        info = lock_info(DOCUMENT)
        return info.holder if info and is_wanted(info.holder) else None

    return eventually(found)


def test_the_process_that_handed_it_over_knows_at_once(editor: str) -> None:
    edit(editor)
    info = rlock(DOCUMENT).info()
    assert info is not None
    assert (info.holder.context, info.holder.place) == (EDIT, "handed over")
    assert (info.kind, info.lease, info.state) == ("fair", 120.0, LockState.HELD)
    assert info.held_for is not None
    assert info.held_for < 60
    assert "GET /edit/<pk>/" in str(info.holder)


def test_other_processes_know_although_it_was_held_for_a_moment(editor: str) -> None:
    with Process("web-1") as web:
        web.acquire(DOCUMENT, EDIT, owner=editor, lease_time=120)
        web.hand_over(DOCUMENT)
        holder = reported()
        assert (holder.host, holder.pid, holder.context, holder.silent) == ("web-1", web.pid, EDIT, False)
        assert [lock.name for lock in iter_locks()] == [DOCUMENT]


def test_the_process_that_enters_it_counts_from_then_on(editor: str) -> None:
    with Process("web-1") as web, Process("web-2") as other:
        web.acquire(DOCUMENT, EDIT, owner=editor, lease_time=120)
        web.hand_over(DOCUMENT)
        other.acquire(DOCUMENT, SAVE, owner=editor, lease_time=120)
        assert reported(lambda holder: holder.host == "web-2").context == SAVE
        other.hand_over(DOCUMENT)
        holder = reported(lambda holder: holder.place)
        assert (holder.host, holder.context) == ("web-2", SAVE)  # the last of two


def test_a_holder_that_handed_it_over_and_died_is_not_silent(editor: str, redis_client: redis.Redis) -> None:
    """So ``rlock_release --dead`` does not free the lock, which the name still holds."""
    with Process("web-1") as web:
        web.acquire(DOCUMENT, EDIT, owner=editor, lease_time=120)
        web.hand_over(DOCUMENT)
        reported()
        web.kill()
        fall_silent(redis_client, web)
        info = lock_info(DOCUMENT)
        assert info is not None
        assert (info.state, info.holder.silent) == (LockState.UNKNOWN, False)


def test_a_report_names_it_until_its_lease_ends(editor: str, redis_client: redis.Redis, clock: Clock) -> None:
    edit(editor)
    clock.publish_in(1)
    assert f"given {editor} rlock:{DOCUMENT}" in report_of(redis_client)
    clock.publish_in(60)
    assert f"given {editor} rlock:{DOCUMENT}" in report_of(redis_client)
    clock.publish_in(60)
    assert not report_of(redis_client)


def test_a_process_remembers_the_last_hundred(editor: str) -> None:
    for number in range(MAX_HANDED_OVER + 1):
        lock = rlock(f"document:{number}", owner=editor)
        lock.acquire()
        lock.hand_over()
    infos = [lock_info(f"document:{number}") for number in (0, 1, MAX_HANDED_OVER)]
    assert [info.holder.place for info in infos if info] == ["", "handed over", "handed over"]
