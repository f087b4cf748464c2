"""One soak: start everything, run the nemesis, let all workers have last turns, look for leaks, check."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

from tests.soak.checker import Verdict, check
from tests.soak.crew import SoakCrew
from tests.soak.deeds import DEEDS
from tests.soak.leaks import close, left_by_ended_processes, left_on_servers
from tests.soak.nemesis import COMPILER, LIBFAKETIME, Nemesis, Scene
from tests.soak.records import Log, read
from tests.soak.rig import Report, report, temporary_folder
from tests.soak.servers import Servers

CONTROL_LASTS = 1.0
"""Seconds without locks, after which the checker looks."""
MOST_CONTROLS = 10


def soak(seed: str, seconds: float, workers: int = 4) -> Report:
    """All of it. It ends by itself: ``seconds``, and then as long as everything takes to come to rest."""
    with temporary_folder("soak") as folder, ExitStack() as stack:
        log = stack.enter_context(Log(folder, "nemesis"))
        servers = Servers(stack, folder)
        settings = [servers.settings(past_proxies) for past_proxies in (True, False)]
        crew = stack.enter_context(SoakCrew(workers, seed, folder, settings))
        found = {LIBFAKETIME: servers.library, COMPILER: crew.library}
        deeds = [deed for deed in DEEDS if not deed.needs or found[deed.needs]]
        skipped = [f"skipped: {deed.name} (without {deed.needs})" for deed in DEEDS if deed not in deeds]
        nemesis = Nemesis(Scene(log, threading.Event(), servers, crew), deeds, seed)
        nemesis.rage(seconds)
        wrong = _come_to_rest(crew, servers)
        return report(folder, nemesis, seconds, check(read(folder)), wrong, skipped, met=crew.met)


def _come_to_rest(crew: SoakCrew, servers: Servers) -> list[str]:
    """What is stuck or left when nothing goes wrong any more."""
    stuck = crew.let_have_last_turns()
    if stuck:
        stuck += servers.pair_now()
    crew.note_met()
    clients = servers.clients()
    leaks: dict[str, Any] = {}
    try:
        if not stuck:
            leaks |= {name: each for name, each in crew.left().items() if each}
            leaks |= left_on_servers(clients)
        for worker in crew.workers:
            worker.kill()
        leaks |= left_by_ended_processes(clients)
    finally:
        close(clients)
    return [f"STUCK: {text}" for text in stuck] + [f"LEFT: {place}: {what}" for place, what in leaks.items()]


def control(seed: str) -> Verdict:
    """What the checker says of locks that do not lock."""
    with temporary_folder("control") as folder, SoakCrew(2, seed, folder, [{}], control=True):
        for _ in range(MOST_CONTROLS):
            time.sleep(CONTROL_LASTS)
            if (verdict := check(read(folder))).violations:
                break
    return verdict
