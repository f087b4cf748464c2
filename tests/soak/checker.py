"""Finds overlaps of holds, and the events that explain them.

Cases that docs/guarantees.md does not promise are known: a server that forgets (its data lost, a failover, its clock
set forward, an operator) lets another owner take the lock while earlier owners rely on their leases. Such an overlap is
counted under its cause. It is explained only if one of them acquired before the cause was over, the other one after it
had begun, and they overlapped no longer than the one's lease after it, since no renewal succeeds then.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django_rlock.locks.watchdog import SURE_WITHIN
from tests.soak.records import (
    DOUBTS,
    FORGETS,
    NODE_FORGETS,
    PERMIT,
    READ,
    STEPS_BACK,
    WIRE,
    Event,
    History,
    Hold,
    Wrong,
)

AROUND = 1.5
"""Seconds before and after a violation that its excerpt shows."""
MOST_SHOWN = 40
"""Lines of an excerpt."""


@dataclass
class Violation:
    """What was wrong, when, and what else happened to that name at that time."""

    what: str
    at: float
    name: tuple[str, str] | None = None
    excerpt: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([f"{self.what} (at {self.at:.4f})", *(f"    {line}" for line in self.excerpt)])


@dataclass
class Verdict:
    """``known`` counts, by what they were and what explains them, the overlaps that nothing promises not to be."""

    holds: Counter[str]
    known: Counter[str]
    violations: list[Violation]


def check(history: History) -> Verdict:
    return _Checker(history).check()


class _Checker:
    def __init__(self, history: History) -> None:
        self.history = history
        self.known: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.by_name: dict[tuple[str, str], list[Hold]] = defaultdict(list)
        for hold in history.holds:
            for name in hold.names:
                self.by_name[hold.place, name].append(hold)
        self.forgetting: dict[str, list[Event]] = defaultdict(list)
        for event in history.events:
            if event.effect in {FORGETS, NODE_FORGETS}:
                self.forgetting[event.place].append(event)

        self.doubting = [event for event in history.events if event.effect == DOUBTS]

    def check(self) -> Verdict:
        for name, holds in self.by_name.items():
            self._check_overlaps(name, holds)
            self._check_tokens(name, [hold for hold in holds if hold.token is not None])
        for hold in self.history.holds:
            if hold.told is not None:
                self._check_told(hold, hold.told)
        for wrong in self.history.wrongs:
            self._check_wrong(wrong)
        self.violations.sort(key=lambda violation: violation.at)
        for violation in self.violations:
            violation.excerpt = self._excerpt(violation)
        return Verdict(Counter(hold.kind for hold in self.history.holds), self.known, self.violations)

    # --- who is inside together --------------------------------------------------------------------------------------

    def _check_overlaps(self, name: tuple[str, str], holds: Sequence[Hold]) -> None:
        inside: list[Hold] = []
        for hold in holds:
            inside = [other for other in inside if other.until > hold.got]
            if hold.until <= hold.got:
                continue
            if hold.mode == PERMIT:
                self._check_permits(name, inside, hold)
            else:
                for other in inside:
                    if _exclude(other, hold):
                        self._judge_overlap(name, other, hold)
            inside.append(hold)

    def _judge_overlap(self, name: tuple[str, str], earlier: Hold, later: Hold) -> None:
        what = f"{earlier.kind} and {later.kind} inside together"
        until = min(earlier.until, later.until)
        # The later one may have been granted, and forgotten, before it heard of that.
        if event := self._explanation(name, earlier, later, until) or self._explanation(name, later, earlier, until):
            self.known[f"{what}: {event.deed}"] += 1
        else:
            lasted = 1000 * (until - later.got)
            text = f"{what} for {lasted:.1f} ms: {name[1]} of {name[0]}: {earlier} and {later}"
            self.violations.append(Violation(text, later.got, name))

    def _explanation(self, name: tuple[str, str], one: Hold, other: Hold, until: float) -> Event | None:
        """What made the server forget the one before the other got in."""
        for event in self.forgetting[name[0]]:
            if (
                event.effect == FORGETS
                and event.name in {None, name[1]}
                and one.asked <= event.ended
                and event.began <= other.got
                and until <= event.ended + one.lease
            ):
                return event
        return None

    def _check_permits(self, name: tuple[str, str], inside: Sequence[Hold], new: Hold) -> None:
        everybody = [*inside, new]
        if sum(hold.amount for hold in everybody) <= new.limit:
            return
        what = f"more than {new.limit} permits of {new.kind} taken"
        forgotten = {hold.id: event for hold in inside if (event := self._explanation(name, hold, new, new.got))}
        remembered = sum(hold.amount for hold in everybody if hold.id not in forgotten)
        event = next(iter(forgotten.values()), None) if remembered <= new.limit else None
        if event is None and new.lease == math.inf:
            event = self._corrupted(name, new)
        if event is not None:
            self.known[f"{what}: {event.deed}"] += 1
        else:
            owners = ", ".join(str(hold) for hold in everybody)
            self.violations.append(Violation(f"{what}: {name[1]} of {name[0]}: {owners}", new.got, name))

    def _corrupted(self, name: tuple[str, str], new: Hold) -> Event | None:
        """What made the server forget how many permits were taken, so that later releases were too many."""
        first = self.by_name[name][0].asked
        events = self.forgetting[name[0]]
        return next((event for event in events if event.ended >= first and event.began <= new.got), None)

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _check_tokens(self, name: tuple[str, str], holds: Sequence[Hold]) -> None:
        """An owner that acquires after another one has a higher token."""
        highest: list[Hold] = []  # by the time of their grants, each with a higher token than those before
        seen: dict[int | None, Hold] = {}
        waiting = sorted(holds, key=lambda hold: hold.asked)
        granted = iter(holds)
        next_granted = next(granted, None)
        for hold in waiting:
            while next_granted is not None and next_granted.got < hold.asked:
                if not highest or _token(next_granted) > _token(highest[-1]):
                    highest.append(next_granted)
                next_granted = next(granted, None)
            if highest and _token(hold) <= _token(highest[-1]):
                self._judge_token(name, highest[-1], hold)
            elif hold.token in seen:
                self._judge_token(name, seen[hold.token], hold)
            seen[hold.token] = hold

    def _judge_token(self, name: tuple[str, str], earlier: Hold, later: Hold) -> None:
        if earlier.owner == later.owner:
            return  # it entered again
        place = name[0]
        forgot = any(each.ended >= earlier.asked and each.began <= later.got for each in self.forgetting[place])
        was_set_back = any(
            event.effect == STEPS_BACK and event.place == place and event.began <= later.got
            for event in self.history.events
        )
        if forgot and was_set_back:
            self.known["a token that did not rise: a counter lost after its clock was set back"] += 1
        else:
            text = f"token {later.token} of {later} is not above {earlier.token} of {earlier}: {name[1]} of {place}"
            self.violations.append(Violation(text, later.got, name))

    # --- what holders were told --------------------------------------------------------------------------------------

    def _check_told(self, hold: Hold, told: float) -> None:
        """No loss is reported without a cause."""
        doubting = self.doubting if self._was_unanswered(hold.place, told) else []
        for event in (*self.forgetting[hold.place], *doubting):
            if event.name in {None, *hold.names} and hold.asked <= event.ended and event.began <= told:
                self.known[f"{hold.kind} lost before its lease ended: {event.deed}"] += 1
                return
        name = (hold.place, hold.names[0])
        self.violations.append(Violation(f"told of a loss for nothing: {hold} of {hold.names}", told, name))

    def _was_unanswered(self, place: str, told: float) -> bool:
        """Whether something may have kept the server from replying within the time that holders give it."""
        events = (event for event in self.history.events if event.place in {place, WIRE})
        return any(event.began <= told and event.ended > told - 2 * SURE_WITHIN for event in events)

    def _check_wrong(self, wrong: Wrong) -> None:
        for event in self.forgetting[wrong.place] if wrong.place else ():
            if (
                event.effect == FORGETS
                and event.name is None
                and wrong.since <= event.ended
                and event.began <= wrong.at
            ):
                self.known[f"a latch that was open too soon: {event.deed}"] += 1
                return
        self.violations.append(Violation(wrong.what, wrong.at))

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _excerpt(self, violation: Violation) -> list[str]:
        began, ended = violation.at - AROUND, violation.at + AROUND
        lines = [(event.began, f"* {event}") for event in self.history.events if _meets(event, began, ended)]
        holds: Iterable[Hold] = self.by_name[violation.name] if violation.name else ()
        lines += [(hold.got, f"- {hold}") for hold in holds if hold.got < ended and hold.until > began]
        lines.sort(key=lambda line: abs(line[0] - violation.at))
        return [f"{at - violation.at:+9.4f} {text}" for at, text in sorted(lines[:MOST_SHOWN])]


def _exclude(one: Hold, other: Hold) -> bool:
    return one.owner != other.owner and (one.mode, other.mode) != (READ, READ)


def _meets(event: Event, began: float, ended: float) -> bool:
    return event.began < ended and event.ended > began


def _token(hold: Hold) -> int:
    assert hold.token is not None
    return hold.token
