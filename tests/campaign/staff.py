"""The workers: each is stopped, killed and replaced by the next."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests import namespaces
from tests.campaign.plan import QUEUE, VARIABLE
from tests.celery_app.workers import TEMPORARY, Worker
from tests.soak.records import ENDS, Log
from tests.soak.rig import Crew

CHILDREN = 2
"""Of each worker."""


class CampaignWorker(Worker):
    """A worker whose processes can be stopped."""

    app, settings = "tests.campaign.app", "tests.campaign.settings"
    records: Log

    def children(self) -> list[int]:
        """The processes that run tasks."""
        pid = self.process.pid
        with suppress(OSError):
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def child(self, chance: Random) -> int | None:
        """One of them; None while there is none."""
        children = self.children()
        return chance.choice(children) if children else None

    def kill(self) -> None:
        """With all its children, whose locks are anybody's from then on."""
        self._note_ends(self.children())
        super().kill()

    def kill_child(self, chance: Random) -> None:
        """One of them."""
        child = self.child(chance)
        if child is not None:
            self._note_ends([child])
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _note_ends(self, children: Sequence[int]) -> None:
        for child in children:
            self.records.event(ENDS, "workers", time.monotonic(), name=f"p{child}")

    def signal(self, number: int) -> None:
        """To all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Let it end as it does when its machine shuts down."""
        self.resume()
        self.stop()


class Staff(Crew[CampaignWorker]):
    """``plans`` are those of each worker in turn: some go through proxies."""

    def __init__(self, size: int, folder: Path, plans: Sequence[dict[str, Any]], records: Log) -> None:
        self._folder = folder
        self._plans = plans
        self._records = records
        super().__init__(size)

    def make(self, place: int, before: Sequence[str] = (), **environ: str) -> CampaignWorker:
        self.made += 1
        plan = json.dumps(self._plans[place % len(self._plans)])
        options = ("--pool", "prefork", "-c", str(CHILDREN), "-n", f"w{self.made}@campaign")
        log = self._folder / f"w{self.made}.log"
        worker = CampaignWorker(QUEUE, *options, log=log, environ={VARIABLE: plan, **environ}, before=before)
        worker.records = self._records
        return worker

    def replace_by_stranger(self, place: int) -> None:
        """Put a worker there of another user, to whom ``/proc`` hides the others' processes."""
        self.replace(place, [*namespaces.with_proc("hidepid=2"), *namespaces.as_nobody()])

    def replace_by_full(self, place: int) -> None:
        """Put a worker there whose children find the disk full on which they make temporary files."""
        folder = self._folder / "full"
        folder.mkdir(exist_ok=True)
        self.replace(place, namespaces.with_full_disk(folder), **{TEMPORARY: str(folder)})
