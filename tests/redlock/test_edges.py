"""NODES wherever ``using`` is accepted: decorator, task, middleware, inspection, admin and commands."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from django_rlock import distributed_lock, rlock
from django_rlock._core.clock import monotonic
from django_rlock.console.reading import asking
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.inspection import force_release, iter_locks, listed_aliases, lock_info, lock_infos
from django_rlock.locks import acquire, watchdog
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.redlock import RedLock
from django_rlock.middleware import LockMiddleware
from tests.background import settle
from tests.beside import in_another_thread
from tests.console.reporting import pool_users
from tests.eventually import eventually
from tests.redlock.conftest import holders, owner_of


@pytest.fixture
def held(nodes, patient):
    """A lock that the running thread has on all nodes, if the test leaves it so."""
    lock = RedLock("x", using="quorum")
    lock.acquire()
    eventually(lambda: all(holders(nodes)))  # the last ones grant it when a quorum has
    yield lock
    HOLDS.clear()


def test_a_view_that_is_locked(held):
    @distributed_lock("x", using="quorum", wait_time=0)
    def buy(request):
        return HttpResponse("bought")

    response = in_another_thread(buy, RequestFactory().post("/"))
    assert response.status_code == 423
    assert int(response["Retry-After"]) > 0


def test_the_middleware_gives_back_what_a_view_forgot(nodes):
    def forgetful(request):
        rlock("x", using="quorum").acquire()
        return HttpResponse()

    LockMiddleware(forgetful)(RequestFactory().get("/"))
    assert not rlock("x", using="quorum").locked()


def test_a_message_that_comes_twice(nodes):
    from celery import Celery
    from celery.app.trace import build_tracer

    from django_rlock.celery import LockedTask

    app = Celery("quorum", broker="memory://", set_as_current=False)

    @app.task(base=LockedTask, lock_key="report", lock_using="quorum", acks_late=True, shared=False)
    def report():
        return "done"

    def deliver(task_id, **delivery_info):
        outcome = build_tracer(report.name, report, app=app)(
            task_id, [], {}, {"id": task_id, "delivery_info": delivery_info}
        )
        return outcome.info.state if outcome.info else outcome.retval

    assert deliver("1") == "done"
    settle()  # the background thread records it
    assert deliver("1", redelivered=True) == "IGNORED"
    lock = rlock("report", using="quorum")
    taken, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            enough.wait(30)

    with ThreadPoolExecutor(1) as another:
        another.submit(hold)
        assert taken.wait(30)
        # One copy is to come: what comes besides is dropped.
        assert [deliver("2", redelivered=True, exchange="", routing_key="reports") for _ in range(2)] == [
            "RETRY",
            "IGNORED",
        ]
        enough.set()
    assert deliver("2", redelivered=True) == "IGNORED"


def test_a_thread_that_is_late_is_not_told_that_it_holds_the_lock(nodes, patient, monkeypatch):
    """The votes came in time; the lease ended before acquire() could return."""
    watch = watchdog.watch

    def stall(hold):
        watch(hold)
        hold.deadline = monotonic()
        monkeypatch.setattr(acquire, "watch", watch)

    lock = RedLock("x", using="quorum")
    monkeypatch.setattr(acquire, "watch", stall)
    assert lock.acquire(blocking=False) is False
    eventually(lambda: not any(holders(nodes)))
    monkeypatch.setattr(acquire, "watch", stall)
    assert lock.acquire(wait_time=30)
    assert not lock.lost
    lock.release()


def test_info_of_nodes(held, nodes):
    info = lock_info("x", "quorum")
    assert info is not None
    assert info.holder.owner == owner_of(held)
    assert info.quorum_text == "quorum 5/5"
    assert list(info.nodes) == ["locks0", "locks1", "locks2", nodes[3].url, nodes[4].url]
    assert set(info.nodes.values()) == {info.holder.owner}
    assert info.remaining_lease is not None
    assert 0 < info.remaining_lease <= 100
    assert lock_info("y", "quorum") is None
    assert [each.name for each in iter_locks("quorum", scan=True)] == ["x"]


def test_nodes_are_not_asked_in_the_callers_thread(held):
    with pool_users() as users:
        assert lock_info("x", "quorum")
    assert users
    assert threading.get_ident() not in users


def test_nodes_that_have_lost_it_and_one_that_is_paused(held, nodes, hasty_nodes):
    with nodes[0].client() as client:
        client.delete("rlock:x")
    nodes[4].pause()
    try:
        [info] = lock_infos(["x"], "quorum")
    finally:
        nodes[4].resume()
    assert info.quorum_text == "quorum 3/5"
    assert info.nodes["locks0"] == ""
    assert info.nodes[nodes[4].url] is None
    assert json.loads(json.dumps(info.as_dict()))["nodes"]["locks0"] == ""


def test_too_few_nodes_to_tell(nodes, hasty_nodes):
    for server in nodes[:3]:
        server.pause()
    try:
        with pytest.raises(QuorumNotReachedError) as failure:
            lock_info("x", "quorum")
    finally:
        for server in nodes[:3]:
            server.resume()
    assert list(failure.value.errors) == ["locks0", "locks1", "locks2"]


def test_an_alias_with_nodes_is_listed_beside_the_default(nodes):
    assert listed_aliases() == ["default", "quorum"]


def test_commands(held, nodes, capsys):
    call_command("rlock_list", using="quorum", scan=True)
    assert "quorum 5/5" in capsys.readouterr().out
    call_command("rlock_release", "x", "--using=quorum", "--no-input")
    assert "freed" in capsys.readouterr().out
    eventually(lambda: not any(holders(nodes)))  # a quorum decides, and the others hear of it as well


def test_force_release_compares_the_owner(held, nodes):
    assert not force_release("x", "another owner", "quorum")
    assert all(holders(nodes))
    assert force_release("x", owner_of(held), "quorum")
    eventually(lambda: not any(holders(nodes)))  # a quorum decides, and the others hear of it as well


def test_a_refresh_counts_keys_on_all_nodes(held, nodes):
    with asking("*", "quorum") as server:
        [state] = server.read_states([held.key]).values()
        assert server.count_present([held.key]) == state.present == 5


@pytest.mark.django_db
def test_admin(held, nodes, settings):
    settings.ROOT_URLCONF = "tests.urls"
    user = User.objects.create_user("operator", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="django_rlock"))
    browser = Client()
    browser.force_login(user)
    page = browser.get(reverse("admin:django_rlock_lock_changelist") + "?scan=1")
    assert "quorum 5/5" in page.content.decode()
    page = browser.get(reverse("admin:django_rlock_lock_change", args=["quorum/x"]))
    assert '<h2 id="rlock-nodes">Nodes</h2>' in page.content.decode()
    assert "<dt><bdi>locks2</bdi></dt><dd>held</dd>" in page.content.decode()
    document = browser.get(reverse("admin:django_rlock_lock_json") + "?scan=1").json()
    assert owner_of(held) not in json.dumps(document)
    target = json.dumps(["quorum", "x", owner_of(held)])
    browser.post(reverse("admin:django_rlock_lock_force_release"), {"lock": target, "confirm": "1"})
    eventually(lambda: not any(holders(nodes)))  # a quorum decides, and the others hear of it as well


async def test_released_lock_stays_taken_on_all_nodes(binding, nodes):
    lock = RedLock("x", using="quorum", at_least=50)
    async with binding.inside(lock):
        pass
    assert await binding.acquire(lock, blocking=False) is False
    assert 40 < await binding.call(lock, "remaining_lease") <= 50
    with nodes[0].client() as client:
        assert [field[:5] for field in client.hkeys("rlock:x")] == ["kept:"]


async def test_a_lock_is_not_kept_for_longer_than_a_restarted_node_has_no_vote(binding, nodes, settings):
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "QUARANTINE": 60}}
    with pytest.raises(ValueError, match="kept for at most 60 s after its release"):
        await binding.acquire(RedLock("x", using="quorum", at_least=61))
