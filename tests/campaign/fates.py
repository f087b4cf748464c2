"""The fate of every task, and the fates that must not be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.plan import MARKER, TASKS
from tests.campaign.trail import Trail, was_lost_at_delivery
from tests.soak.checker import Violation
from tests.soak.records import lines_of

END_STATES = {"SUCCESS", "FAILURE", "REVOKED", "REJECTED"}
_UNNOTED = "could not be recorded"
"""What the package says of a success that the server of locks does not know of."""


@dataclass
class Fate:
    """What the workers wrote down of one task: when its body began, and when its result was stored; not of skips."""

    began: list[float] = field(default_factory=list)
    succeeded: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    """When the body of each success ended: the success is remembered from then on."""
    unstored: list[float] = field(default_factory=list)
    """When Celery failed to store an outcome, as the result backend was away."""
    said: list[str] = field(default_factory=list)


def read(folder: Path) -> dict[str, Fate]:
    """By task id."""
    fates: dict[str, Fate] = defaultdict(Fate)
    for path in sorted((folder / TASKS).glob("*.jsonl")):
        for line in lines_of(path):
            what, at = line["line"], line["at"]
            if what == "said":
                task_id = line["text"].partition("[")[2].partition("]")[0]
                fates[task_id].said.append(line["text"])
                continue
            fate = fates[line["task"]]
            if what == "began":
                fate.began.append(at)
            elif what == "unstored":
                fate.unstored.append(at)
            elif line["ran"]:
                fate.succeeded.append(at)
                fate.ended.append(line["ended"])
    return fates


@dataclass
class Judgement:
    """``ends`` counts how the tasks ended. ``known`` counts what nothing promises not to be."""

    ends: Counter[str]
    known: Counter[str]
    violations: list[Violation]


def judge(
    fates: Mapping[str, Fate], sent: Mapping[str, str], states: Mapping[str, str], trails: Mapping[str, Trail]
) -> Judgement:
    """``sent`` describes the tasks, ``states`` has how they ended, ``trails`` their messages' ways; all by task id."""
    known: Counter[str] = Counter()
    violations = [*_unended(fates, sent, states, trails, known), *_run_again(fates, sent, known)]
    return Judgement(Counter(states[each] for each in sent), known, violations)


def _unended(
    fates: Mapping[str, Fate],
    sent: Mapping[str, str],
    states: Mapping[str, str],
    trails: Mapping[str, Trail],
    known: Counter[str],
) -> Iterable[Violation]:
    for task_id, what in sent.items():
        if states[task_id].partition(":")[0] in END_STATES:
            continue
        trail = trails.get(task_id, [])
        text = f"lost: task {task_id} ({what}) ended as {states[task_id]}; {fates.get(task_id)}; {trail}"
        if was_lost_at_delivery(trail):
            known["lost by Kombu, which took it from the queue and did not come to note that"] += 1
        elif task_id in fates and fates[task_id].unstored:
            known["ended, which Celery could not store"] += 1
        else:
            yield Violation(text, 0.0)


def _run_again(fates: Mapping[str, Fate], sent: Mapping[str, str], known: Counter[str]) -> Iterable[Violation]:
    for task_id, fate in fates.items():
        if not fate.succeeded:
            continue
        first = min(fate.succeeded)
        forgotten = min(fate.ended, default=first) + MARKER
        again = [at for at in (*fate.began, *fate.succeeded) if first < at < forgotten]
        if again and any(_UNNOTED in text for text in fate.said):
            known["run again, as the success could not be recorded"] += 1
        elif again:
            what = sent.get(task_id, "not known to be sent")
            yield Violation(f"run again after its success at {first:.3f}: task {task_id} ({what}); {fate}", again[0])
