"""One campaign: start everything, send tasks while the nemesis rages, wait until the broker has none left, check."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from contextlib import ExitStack

from celery import Celery
from django.conf import settings
from django.test import override_settings

from tests.campaign import fates, trail
from tests.campaign.app import make
from tests.campaign.deeds import DEEDS
from tests.campaign.plan import QUEUE, TASKS, WATCHDOG_TIMEOUT
from tests.campaign.publisher import Publisher
from tests.campaign.servers import Servers
from tests.campaign.staff import Staff
from tests.soak.checker import check
from tests.soak.nemesis import Nemesis, Scene
from tests.soak.records import Log, read
from tests.soak.rig import Report, report, temporary_folder

PATIENCE = 120.0
"""Seconds within which the broker must have no message left when all is well."""
_LEFT = "redis.call('select', 1) return redis.call('llen', ARGV[1]) + redis.call('hlen', 'unacked')"


def _locks_at(url: str) -> override_settings:
    """Have this process, which sends messages, look for their places where the workers do."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    cache = {**settings.CACHES["default"], "LOCATION": url}
    return override_settings(CACHES={"default": cache}, RLOCK={"default": {"WATCHDOG_TIMEOUT": WATCHDOG_TIMEOUT}})


def run(
    seed: str,
    seconds: float,
    workers: int = 3,
    whose: str = "locked",
    rages: bool = True,
    long: float = 0.005,
    most: float = math.inf,
) -> Report:
    """All of it. It ends by itself: ``seconds``, and then as long as the messages take that are left.

    ``whose`` tasks, see ``app.WHOSE``; ``long`` is the share of those that outlast the visibility timeout; at most
    ``most`` are sent.
    """
    with temporary_folder("campaign") as folder, ExitStack() as stack:
        (folder / TASKS).mkdir()
        log = stack.enter_context(Log(folder, "nemesis"))
        servers = Servers(stack, folder)
        plans = [
            {"folder": str(folder), "whose": whose, **servers.addresses(past_proxies)} for past_proxies in (True, False)
        ]
        stack.enter_context(_locks_at(plans[0]["locks"]))
        made = make(plans[0])
        stack.callback(made.app.close)
        stack.callback(gc.collect)  # results unsubscribe when they are collected, which takes a server
        staff = stack.enter_context(Staff(workers, folder, plans, log))
        over = threading.Event()
        publisher = Publisher(made.tasks, servers, seed, over, long, most)
        nemesis = Nemesis(Scene(log, over, servers, staff), DEEDS if rages else [], seed)
        publisher.start()
        nemesis.rage(seconds)
        publisher.join()
        left = _wait_for_the_last(servers)
        for worker in staff.workers:
            worker.end()  # when what it runs has ended
        states = {task_id: _state(made.app, task_id) for task_id in publisher.sent}
        verdict = check(read(folder))
        trails = trail.trails(servers.broker.server.folder)
        judgement = fates.judge(fates.read(folder), publisher.sent, states, trails)
        verdict.known += judgement.known
        verdict.violations += judgement.violations
        wrong = [f"LEFT: {left} messages that nobody works off"] if left else []
        counts = {"ends": judgement.ends, "not sent": publisher.refused}
        return report(folder, nemesis, seconds, verdict, wrong, [f"tasks: {whose}"], **counts)


def _wait_for_the_last(servers: Servers) -> int:
    """Until no message is in the queue, or in a worker that has not acknowledged it; how many are left."""
    give_up_at = time.monotonic() + PATIENCE
    with servers.broker.client() as client:
        while (left := int(client.execute_command("EVAL", _LEFT, 0, QUEUE))) and time.monotonic() < give_up_at:
            time.sleep(0.1)
    return left


def _state(app: Celery, task_id: str) -> str:
    """How a task ended, as Celery has it; with the error's name."""
    found = app.backend.get_task_meta(task_id)
    failed = found["status"] == "FAILURE"
    return f"FAILURE: {type(found['result']).__name__}" if failed else str(found["status"])
