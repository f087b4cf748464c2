"""System checks of tasks."""

import celery
import pytest
from celery import Celery

from django_rlock.celery import LockedTask
from django_rlock.tasklocks.checks import check_tasks


@pytest.fixture
def app():
    former = celery.current_app._get_current_object()  # type: ignore[attr-defined]
    with Celery("checks", broker="memory://") as made:
        made.conf.worker_prefetch_multiplier = 1
        yield made
    former.set_current()


@pytest.fixture
def found(app, settings):
    """What is found about a task with these options, as its id and text."""

    nodes = [f"redis://localhost:{port}/0" for port in (1, 2, 3)]
    settings.RLOCK = {"default": {}, "quorum": {"NODES": nodes}}

    def check(**options):
        @app.task(base=LockedTask, shared=False, name="job", **{"lock_key": "job", **options})
        def job():
            pass

        app.finalize()
        told = [(str(message.id).removeprefix("django_rlock."), str(message.msg)) for message in check_tasks()]
        return [each for each in told if each[1].startswith("job")]  # not of shared tasks of other tests

    return check


def test_nothing_is_wrong(found):
    assert found() == []


@pytest.mark.parametrize(
    ("options", "number", "text"),
    [
        ({"lock_using": "nope"}, "E020", "lock_using"),
        ({"lock_key": "job:<self.nope>"}, "E020", "no attribute 'nope'"),
        ({"on_locked": "wait", "soft_time_limit": 5}, "W020", "soft time limit of 5 s"),
        ({"on_locked": "wait", "soft_time_limit": 5, "lock_wait_time": 6}, "W020", "soft time limit of 5 s"),
        ({"acks_late": True, "time_limit": 4000}, "W021", "after 3600 s"),
        ({"acks_late": True, "lock_lease_time": 4000}, "W021", "for 4000 s"),
        ({"lock_using": "quorum", "lock_scope": "queue"}, "E020", "'quorum' has NODES"),
    ],
)
def test_it_tells_what_is_wrong(found, options, number, text):
    ((told, message),) = found(**options)
    assert told == number
    assert text in message


def test_messages_behind_one_that_waits(found, app):
    app.conf.worker_prefetch_multiplier = 4
    assert [number for number, _ in found(on_locked="wait")] == ["W020"]


def test_waits_that_end_in_time(found):
    assert found(on_locked="wait", soft_time_limit=5, lock_wait_time=4) == []


def test_a_wait_that_is_interrupted_before_its_message_comes_again(found):
    assert found(on_locked="wait", acks_late=True, soft_time_limit=2000) == []
