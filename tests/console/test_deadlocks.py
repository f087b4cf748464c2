"""Owners that wait for each other in a circle, as wait_for_graph(), the commands and locks show them."""

import io
import json
from collections.abc import Sequence
from contextlib import suppress
from threading import Barrier, Thread
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_rlock import LockLostError, LockTimeoutError, rlock
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY
from django_rlock.console.deadlocks import Name, find_deadlocks
from django_rlock.inspection import (
    LockInfo,
    WaitGraph,
    find_locks,
    force_release,
    lock_info,
    take_survey,
    wait_for_graph,
)
from django_rlock.locks.records import Work, context
from tests.console.crowd import plant_locks
from tests.console.processes import Process
from tests.eventually import eventually

JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"


class Philosophers:
    """Threads of which each takes a fork (``doing`` names what with), and then waits for the next one's."""

    def __init__(self, *forks: str, kind: str = "fair", doing: Sequence[dict[str, str]] = ()) -> None:
        self._have = Barrier(len(forks) + 1)
        self._kind: Any = kind
        self._threads = [
            Thread(target=self._dine, args=(fork, then, about))
            for fork, then, about in zip(forks, (*forks[1:], forks[0]), doing or [{}] * len(forks), strict=True)
        ]
        for thread in self._threads:
            thread.start()
        self._have.wait()

    def _dine(self, first: str, second: str, doing: dict[str, str]) -> None:
        context.set(Work(doing))
        with suppress(LockLostError, LockTimeoutError), rlock(first, kind=self._kind):
            self._have.wait()
            with rlock(second, kind=self._kind, wait_time=60):
                pass

    def part(self, fork: str) -> None:
        """Free one lock, which lets all end."""
        force_release(fork)
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("kind", ["fair", "rlock"])
@pytest.mark.parametrize("forks", [("a", "b"), ("a", "b", "c")], ids=len)
def test_a_deadlock_is_found_and_goes_away(forks: tuple[str, ...], kind: str) -> None:
    doing = [{"route": "POST /buy/"}, {"task": "shop.tasks.count", "task_id": "5f"}, {}][: len(forks)]
    philosophers = Philosophers(*forks, kind=kind, doing=doing)
    [deadlock] = eventually(lambda: wait_for_graph().deadlocks)
    steps = {step.holds.name: (step.waits_for.name, step.party.doing) for step in deadlock.steps}
    assert steps == {
        fork: (then, ["POST /buy/", "shop.tasks.count 5f", ""][index])
        for index, (fork, then) in enumerate(zip(forks, (*forks[1:], forks[0]), strict=True))
    }
    locks, errors = find_locks()
    assert {lock.name: lock.state.value for lock in locks} == dict.fromkeys(forks, "deadlock")
    assert not errors
    assert len({lock.deadlock for lock in locks}) == 1
    philosophers.part("a")
    assert wait_for_graph() == WaitGraph((), ())
    assert find_locks() == ([], {})


def test_a_waiter_behind_a_deadlock_is_not_part_of_it() -> None:
    philosophers = Philosophers("a", "b")
    bystander = Thread(target=lambda: rlock("a", wait_time=60).acquire() and rlock("a").release())  # type: ignore[func-returns-value]
    with rlock("c"):
        bystander.start()
        graph = eventually(lambda: graph_with(edges=3, deadlocks=1))
        assert [deadlock.locks for deadlock in graph.deadlocks] == [{("default", "a"), ("default", "b")}]
        assert lock_info("c").state == "held"  # type: ignore[union-attr]
    philosophers.part("b")
    bystander.join()


def test_a_chain_is_no_deadlock() -> None:
    with rlock("a"):

        def wait() -> None:
            with rlock("b"), rlock("a", wait_time=60):
                pass

        waiter = Thread(target=wait)
        waiter.start()
        # Its place in the queue may be seen before its report.
        eventually(lambda: [(edge.name, edge.waiter.place) for edge in wait_for_graph().edges] == [("a", waiter.name)])
        assert wait_for_graph().deadlocks == ()
    waiter.join()


def test_a_java_thread_in_redissons_fair_lock_is_a_part_of_it(redis_client: redis.Redis) -> None:
    redis_client.hset("rlock:java", JAVA, 1)
    redis_client.pexpire("rlock:java", 60_000)
    redis_client.rpush("redisson_lock_queue:{rlock:ours}", JAVA_QUEUE_ENTRY, JAVA)

    def dine() -> None:
        with rlock("ours"), rlock("java", wait_time=60):
            pass

    ours = Thread(target=dine)
    ours.start()
    [deadlock] = eventually(lambda: wait_for_graph().deadlocks)
    assert {(step.party.owner == JAVA, step.holds.name) for step in deadlock.steps} == {(True, "java"), (False, "ours")}
    assert {lock.name: lock.state.value for lock in find_locks()[0]} == {"java": "deadlock", "ours": "deadlock"}
    force_release("java")
    ours.join()
    assert wait_for_graph().deadlocks == ()


def test_processes_that_deadlock_are_shown_by_the_commands() -> None:
    with Process("web-1") as web, Process("worker-1", "celery") as worker:
        web.acquire("stock:1", {"route": "POST /buy/1/"})
        worker.acquire("stock:2")
        web.block("stock:2", {"route": "POST /buy/1/"})
        worker.block("stock:1", {"task": "shop.tasks.count", "task_id": "5f"})
        eventually(lambda: wait_for_graph().deadlocks)
        document = json.loads(shown("rlock_list", "stock:1", "--format", "json", "--state", "deadlock"))
        table, text = shown("rlock_list", "stock:1"), shown("rlock_info", "stock:2")
    [lock] = document
    assert [(step["process"], step["doing"], step["holds"], step["waits_for"]) for step in lock["deadlock"]] in (
        steps := [
            (f"web-1 pid {web.pid}", "POST /buy/1/", "stock:1", "stock:2"),
            (f"worker-1 pid {worker.pid}", "shop.tasks.count 5f", "stock:2", "stock:1"),
        ],
        steps[::-1],
    )
    for step in lock["deadlock"]:
        assert (
            f"{step['process']}, MainThread, {step['doing']} holds {step['holds']}, waits for {step['waits_for']}"
        ) in table
        assert f"holds {step['holds']}, waits for {step['waits_for']}" in text


def test_a_circle_counts_only_when_it_is_read_twice() -> None:
    philosophers = Philosophers("a", "b")
    eventually(lambda: wait_for_graph().deadlocks)
    survey = take_survey()
    readings = []

    def read(names: Sequence[Name]) -> list[LockInfo]:
        found = survey.read(names)
        readings.append(names)
        if len(readings) == 1:
            philosophers.part("a")
        return found

    assert find_deadlocks(survey.reported, read) == ()
    assert len(readings) == 2


def test_no_lock_is_read_again_where_no_circle_can_be(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 20, 2)
    with rlock("ours"):
        redis_client.zadd("rlock_queue:{rlock:ours}", {JAVA: 1})
        assert find_deadlocks(take_survey().reported, unread) == ()


def unread(names: Sequence[Name]) -> list[LockInfo]:
    raise AssertionError(f"{names} were read")


def graph_with(edges: int, deadlocks: int) -> WaitGraph | None:
    graph = wait_for_graph()
    return graph if (len(graph.edges), len(graph.deadlocks)) == (edges, deadlocks) else None


def shown(*command: str) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()
