"""Locks behind each server: exclusion across its processes, what views forget, clients that go away, and restarts."""

from __future__ import annotations

import os
import signal

import pytest

from tests.eventually import PATIENCE, eventually
from tests.servers.running import SERVERS, Site, finish
from tests.servers.views import Views

ASGI = [each for each in SERVERS if each.speaks_asgi]


def test_one_of_two_processes_is_inside(site: Site, views: Views) -> None:
    first = site.begin(views.renewed)
    one, inside = views.entered()
    assert inside == 1
    second = site.begin(views.renewed, site.elsewhere(one))
    eventually(lambda: views.waiting() == 1, PATIENCE)
    lease = views.lease()
    eventually(lambda: views.lease() > lease, PATIENCE)  # the watchdog's thread runs
    views.let_go()
    assert finish(first) == "done"
    other, inside = views.entered()
    assert inside == 1
    assert other != one
    views.let_go()
    assert finish(second) == "done"
    assert views.is_free()


def test_what_a_view_leaves_held_is_given_back(site: Site, views: Views) -> None:
    for path in views.forget:
        assert site.get(path) == "done"
        assert views.is_free()


def test_a_client_that_goes_away_while_it_waits(site: Site, views: Views) -> None:
    first = site.begin(views.work)
    pid, _ = views.entered()
    second = site.begin(views.work, site.elsewhere(pid))
    eventually(lambda: views.waiting() == 1, PATIENCE)
    second.close()
    if site.server.speaks_asgi:
        eventually(lambda: views.waiting() == 0, PATIENCE)
        views.let_go()
    else:  # the view is not notified: it gets its turn, and works for no one
        views.let_go()
        assert views.entered().inside == 1
        views.let_go()
    assert finish(first) == "done"
    eventually(views.is_free, PATIENCE)


def test_a_client_that_goes_away_inside(site: Site, views: Views) -> None:
    request = site.begin(views.work)
    views.entered()
    request.close()
    if not site.server.speaks_asgi:
        views.let_go()
        views.left()
    eventually(views.is_free, PATIENCE)


@pytest.mark.parametrize("_started", ASGI, ids=lambda server: server.name, indirect=True)
def test_a_sync_view_behind_asgi_goes_on_without_its_client(site: Site, views: Views) -> None:
    request = site.begin(views.sync_work)
    views.entered()
    request.close()
    views.let_go()
    views.left()
    eventually(views.is_free, PATIENCE)


def test_a_restart_gives_back_what_is_held(site: Site, views: Views) -> None:
    first = site.connect()
    assert site.get(views.keep, first) == "done"
    site.begin(views.work, first)
    pid, inside = views.entered()
    assert inside == 1
    assert views.is_kept()
    with site.restarting(pid) as connection:
        second = site.begin(views.work, connection)
        if site.server.lets_requests_end:
            views.let_go()
            assert finish(first) == "done"
            assert views.entered().inside == 1
        else:  # the first has been dropped where it stood, so it is still counted
            assert views.entered().pid != pid
        views.let_go()
        assert finish(second) == "done"
    assert views.is_free()
    eventually(lambda: views.is_kept() != site.server.runs_exit_hooks, PATIENCE)


@pytest.mark.parametrize("_started", [SERVERS[0]], ids=lambda server: server.name, indirect=True)
def test_a_sync_worker_that_takes_too_long(site: Site, views: Views) -> None:
    request = site.begin(views.work)
    pid, _ = views.entered()
    os.kill(pid, signal.SIGABRT)  # as its arbiter does
    eventually(views.is_free, PATIENCE)
    request.close()
    following = site.begin(views.work)
    other, inside = views.entered()
    assert inside == 1
    site.elsewhere(other)  # one that has taken the place of the first
    views.let_go()
    assert finish(following) == "done"
