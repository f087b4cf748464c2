"""Messages that have a reservation are seen, and their reservations freed, from outside."""

import json
from io import StringIO
from typing import Any

import pytest
from celery import Celery
from django.core.management import CommandError, call_command
from kombu import Queue

from django_rlock.celery import LockedTask
from django_rlock.inspection import free_reservations, lock_info, queued_messages
from tests.celery_app import app, tasks
from tests.celery_app.records import starts, until
from tests.tasks.test_losses import go
from tests.tasks.test_scopes import unread, waiting

__all__ = ["unread"]

pytestmark = pytest.mark.usefixtures("locks_of_workers")


def run(*args):
    output = StringIO()
    call_command(*args, stdout=output)
    return output.getvalue()


@pytest.fixture
def queued(unread, log):
    """A message that waits."""
    return tasks.queues.apply_async([log], queue=unread)


def test_a_queued_message_is_described(queued, unread, log):
    info = lock_info(f"work:{log}")
    assert info is not None
    assert (info.state, info.is_held) == ("queued", False)
    [message] = info.queued
    assert (message.task, message.task_id, message.queue) == (tasks.queues.name, queued.id, unread)
    assert 0 <= message.waited < message.left <= 3600
    assert message.is_sent
    assert tasks.queues.lock_info(log).queued[0].task_id == queued.id


def test_runs_that_may_overlap_are_described_as_those_of_a_lock(worker, unread, log):
    task = tasks.queues_until_it_starts
    for _ in range(2):
        task.delay(log)
        starts(log, 1)
    waits = task.apply_async([log], queue=unread)
    until(lambda: len(task.lock_info(log).holders) == 2)
    info = task.lock_info(log)
    assert (info.name, info.is_held, info.state) == (f"work:{log}", True, "held")
    assert [message.task_id for message in info.queued] == [waits.id]
    go(log)
    go(log)
    until(lambda: not task.lock_info(log).is_held)


def test_rlock_info_shows_it(queued, unread, log):
    shown = run("rlock_info", f"work:{log}")
    for text in (queued.id, unread, tasks.queues.name):
        assert text in shown


@pytest.mark.parametrize("format_", ["table", "json"])
def test_rlock_list_shows_it(queued, unread, log, format_):
    shown = run("rlock_list", "--queued", "--using", "default", "--format", format_, f"work:{log}")
    for text in (f"work:{log}", queued.id, unread):
        assert text in shown
    with pytest.raises(CommandError, match="No message"):
        run("rlock_list", "--queued", "--using", "default", "nothing:*")


@pytest.fixture
def one_away(queued, settings):
    """A second alias, whose server does not reply, and which comes first."""
    settings.CACHES = {**settings.CACHES, "away": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.RLOCK = {"default": {}, "away": {"CACHE": "away"}}


def test_rlock_list_shows_it_beside_an_alias_that_does_not_reply(one_away, queued, log):
    output = StringIO()
    with pytest.raises(CommandError, match="alias 'away' did not respond") as failure:
        call_command("rlock_list", "--queued", f"work:{log}", stdout=output)
    assert failure.value.returncode == 1
    assert queued.id in output.getvalue()


def test_rlock_release_frees_a_queue_beside_an_alias_that_does_not_reply(one_away, queued, unread, log):
    with pytest.raises(CommandError, match="alias 'away' did not respond"):
        run("rlock_release", "--queue", unread, "--no-input")
    assert not queued_messages("default", pattern=f"work:{log}")


@pytest.mark.parametrize("option", ["--scan", "--state=queued"])
def test_rlock_list_shows_free_locks_that_are_queued_for(queued, unread, log, option):
    shown = run("rlock_list", option, "--using", "default", f"work:{log}")
    for text in (f"work:{log}", "queued", queued.id, unread):
        assert text in shown


@pytest.mark.parametrize("scan", [{}, {"scan": "1"}], ids=["", "scan"])
@pytest.mark.django_db
def test_lists_show_what_is_queued_for_a_held_lock(worker, unread, log, admin_client, scan):
    running = tasks.queues_again.delay(log, gated=True)
    starts(log, 1)
    waits = tasks.queues_again.apply_async([log], queue=unread)
    until(lambda: tasks.queues_again.lock_info(log).held_for)  # by a report
    shown = json.loads(run("rlock_list", "--using", "default", "--format", "json", f"work:{log}"))
    assert [message["task_id"] for message in shown[0]["queued"]] == [waits.id]
    page = admin_client.get("/admin/django_rlock/lock/", {"q": log, **scan}).content.decode()
    assert waits.id in page
    tasks.queues_again.release_lock(log)
    go(log)
    running.forget()


@pytest.mark.parametrize("query", [{"scan": "1"}, {"state": "queued"}], ids=str)
@pytest.mark.django_db
def test_the_admins_list_shows_free_locks_that_are_queued_for(queued, unread, log, admin_client, query):
    page = admin_client.get("/admin/django_rlock/lock/", {"q": log, **query}).content.decode()
    assert queued.id in page


@pytest.mark.django_db
def test_the_admin_shows_it(queued, unread, log, admin_client):
    page = admin_client.get(f"/admin/django_rlock/lock/default/work:{log}/change/").content.decode()
    for text in ("This lock is free", queued.id, unread, tasks.queues.name):
        assert text in page


def test_rlock_release_frees_the_reservation_of_a_name(queued, unread, log):
    assert queued.id in run("rlock_release", f"work:{log}", "--no-input")
    assert lock_info(f"work:{log}") is None
    assert tasks.queues.apply_async([log], queue=unread).id != queued.id
    assert waiting(unread) == 2


def test_rlock_release_frees_all_reservations_of_a_queue(queued, unread, log):
    other = tasks.queues.apply_async([f"{log}-2"], queue=f"{unread}-2")
    tasks.queues_late.apply_async([f"{log}-3"], queue=unread)
    options = "--queue", unread, "--using", "default", "--no-input", "--format", "json"
    released = json.loads(run("rlock_release", *options))
    assert {each["name"] for each in released} == {f"work:{log}", f"work:{log}-3"}
    assert {each["result"] for each in released} == {"freed"}
    assert [each.task_id for each in queued_messages("default", pattern=f"work:{log}*")] == [other.id]
    tasks.queues.release_lock(f"{log}-2")


def test_a_reservation_that_another_message_has_meanwhile_is_not_freed(queued, unread, log):
    [message] = queued_messages("default", [f"work:{log}"])
    tasks.queues.release_lock(log)
    later = tasks.queues.apply_async([log], queue=unread)
    assert free_reservations([message]) == 0
    assert tasks.queues.apply_async([log], queue=unread).id == later.id


@pytest.mark.parametrize("by", ["an address", "a socket"])
def test_apps_on_other_brokers_share_no_reservations(log, server, by):
    base = app.conf.broker_url.removesuffix("1")
    if by == "a socket":
        base = f"redis+socket://{server.url.removeprefix('unix://').partition('?')[0]}?virtual_host="
    results: list[Any] = []
    for database in (1, 4, 1):
        url = f"{base}{database}"
        with Celery("app", broker=url, set_as_current=False) as each:

            @each.task(base=LockedTask, shared=False, name="job", lock_key=f"work:{log}", lock_scope="queue")
            def job():
                """Nobody runs it."""

            results.append(job.apply_async(queue=f"unread-{log}"))
            with each.connection_for_write() as connection:
                Queue(f"unread-{log}", channel=connection.default_channel).delete()
    assert [result.was_sent for result in results] == [True, True, False]
    info = lock_info(f"work:{log}")
    assert info is not None
    assert {message.task_id for message in info.queued} == {result.id for result in results[:2]}
