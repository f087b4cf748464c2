"""Celery tasks whose Redis goes away at an inconvenient moment."""

from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Reject

from django_rlock import FairLock
from django_rlock._redis import scripts
from django_rlock._tasks import deliveries
from django_rlock._tasks.reservations import Reservation
from django_rlock._transport import worker
from django_rlock.celery import LockedTask
from tests.beside import held_beside
from tests.eventually import UNTIL_SERVED, eventually

MORE_THAN_ARE_TRIED = 5


@pytest.fixture
def app():
    with Celery("faults", broker="memory://", set_as_current=False) as made:
        yield made


@pytest.fixture
def taken():
    """Another thread holds the lock "job" until the test ends."""
    with held_beside(FairLock("job")):
        yield


def test_a_task_is_sent_anew_that_redis_refused_and_then_did_not_know(app, proxy, taken):
    def body(self: Any) -> str:
        return "ran"

    task = app.task(base=LockedTask, bind=True, shared=False, name="job", lock_key="job", on_locked="retry")(body)
    rules = [proxy.hold(scripts.TASK_READ) for _ in range(MORE_THAN_ARE_TRIED)]
    request = {"id": "1", "delivery_info": {"exchange": "", "routing_key": "anew"}}
    outcome = build_tracer(task.name, task, app=app)("1", [], {}, request)
    assert rules[0].served.is_set()
    assert outcome.info is not None
    assert outcome.info.state == "RETRY"
    with app.connection_for_read() as connection:
        sent = connection.SimpleQueue("anew").get(timeout=UNTIL_SERVED)
    assert sent.headers["id"] == "1"
    assert sent.headers["rlock_token"], "it may be sent twice, and is looked up only as a copy"


@pytest.fixture
def reject(app, redis_client):
    """Runs a task that rejects its message after its body has succeeded; ``then`` runs between the two."""

    def reject(then=lambda: None):
        class Rejects(LockedTask[..., Any]):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                self.run(*args, **kwargs)  # like Task.__call__ in a worker
                assert redis_client.keys("rlock_done:*")
                then()
                raise Reject("later", requeue=True)

        @app.task(base=Rejects, shared=False, name="job", lock_key="job", acks_late=True)
        def task() -> None:
            """Do nothing."""

        outcome = build_tracer(task.name, task, app=app)("1", [], {}, {"id": "1", "delivery_info": {}})
        assert outcome.info is not None
        assert outcome.info.state == "REJECTED"

    return reject


def test_late_record_of_a_success_is_forgotten_after_a_rejection(reject, proxy, redis_client, monkeypatch):
    monkeypatch.setattr(worker, "AGAIN_AFTER", 0.05)
    late = proxy.copy_late(scripts.TASK_DONE)
    reject()
    assert not redis_client.keys("rlock_done:*")
    late.let_go.set()
    assert late.obeyed.wait(UNTIL_SERVED)
    eventually(lambda: not redis_client.keys("rlock_done:*"))


def test_success_that_cannot_be_forgotten_at_once_is_forgotten_later(reject, proxy, redis_client, caplog, monkeypatch):
    rules: list[Any] = []

    def cut() -> None:
        monkeypatch.setattr(deliveries, "DELIVERY_PATIENCE", 0.1)
        rules.extend(proxy.cut_before(scripts.TASK_DONE) for _ in range(1000))

    reject(cut)
    for rule in rules:
        proxy.withdraw(rule)
    eventually(lambda: not redis_client.keys("rlock_done:*"))
    eventually(lambda: "its success could not be forgotten yet" in caplog.text)


@pytest.fixture
def reservation(app):
    """Makes the reservation of a message with a token, which all make in turn."""

    @app.task(base=LockedTask, shared=False, name="job", lock_key="job", lock_scope="queue")
    def task() -> None:
        """Do nothing."""

    return lambda token: Reservation(task, "job", "1", token)


CHANGES = {
    "keep": lambda reservation: reservation("first").keep(60),
    "begin": lambda reservation: reservation("first").begin(),
    "release": lambda reservation: reservation("first").release(),
    "free": lambda reservation: reservation("").free(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_late_change_of_a_reservation_keeps_that_of_the_next_message(reservation, proxy, redis_client, change):
    reservation("first").reserve()
    late = proxy.copy_late(b"first:1")
    CHANGES[change](reservation)
    assert late.served.is_set()
    redis_client.flushdb()
    reservation("second").reserve()
    late.let_go.set()
    assert late.obeyed.wait(UNTIL_SERVED)
    [key] = redis_client.keys("rlock_place:*")
    assert redis_client.get(key).startswith("?second:1\n")
    assert redis_client.pttl(key) <= 5000
