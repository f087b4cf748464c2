"""Draws the sequence diagrams of the documentation: ``python docs/images/draw.py`` writes them beside this file.

Each is an SVG that is as wide as a phone, follows the reader's light or dark theme, and tells its story in words to a
screen reader. Time runs down; participants stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

SVG = "http://www.w3.org/2000/svg"
WIDTH, TOP, ROW = 360, 34, 34
STYLE = """
text{font:12px system-ui,sans-serif;fill:#1f2328}
.name{font-weight:600}
.small{fill:#59636e}
.line,.arrow{stroke:#818b98;fill:none}
.arrow{stroke:#1f2328;stroke-width:1.5}
.tip{fill:#1f2328}
.hold{fill:#0969da;fill-opacity:.35}
.lost{fill:#cf222e;fill-opacity:.45}
.back{fill:#fff}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}
.small{fill:#9198a1}
.line{stroke:#656c76}
.arrow{stroke:#f0f6fc}
.tip{fill:#f0f6fc}
.hold{fill:#4493f8}
.lost{fill:#f85149}
.back{fill:#0d1117}
}
""".strip().replace("\n", "")


@dataclass(frozen=True)
class Step:
    """A message from one participant to another (``to``), or what one does by itself; ``row`` is its time."""

    row: int
    lane: int
    text: str
    to: int | None = None
    fails: bool = False


@dataclass(frozen=True)
class Bar:
    """For how long a participant holds the lock, or, ``lost``, believes so."""

    lane: int
    first: int
    last: int
    lost: bool = False


@dataclass(frozen=True)
class Picture:
    """``story`` is the text for screen readers."""

    file: str
    title: str
    story: str
    lanes: Sequence[str]
    steps: Sequence[Step]
    bars: Sequence[Bar]

    def svg(self) -> str:
        height = TOP + ROW * (max(step.row for step in self.steps) + 2)
        return "\n".join(
            [
                f'<svg xmlns="{SVG}" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title story">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="story">{escape(self.story)}</desc>',
                f"<style>{STYLE}</style>",
                f'<rect class="back" width="{WIDTH}" height="{height}"/>',
                *self._lanes(height),
                *(self._bar(bar) for bar in self.bars),
                *(part for step in self.steps for part in self._step(step)),
                "</svg>\n",
            ]
        )

    def _x(self, lane: int) -> float:
        return WIDTH * (2 * lane + 1) / (2 * len(self.lanes))

    @staticmethod
    def _y(row: float) -> float:
        return TOP + ROW * (row + 0.8)

    def _lanes(self, height: int) -> Iterator[str]:
        for lane, name in enumerate(self.lanes):
            x = self._x(lane)
            yield f'<text class="name" x="{x:g}" y="20" text-anchor="middle">{escape(name)}</text>'
            yield f'<path class="line" d="M{x:g} {TOP - 6}V{height - 8}"/>'

    def _bar(self, bar: Bar) -> str:
        x, y, end = self._x(bar.lane) - 6, self._y(bar.first), self._y(bar.last)
        name = "lost" if bar.lost else "hold"
        return f'<rect class="{name}" x="{x:g}" y="{y:g}" width="12" height="{end - y:g}" rx="3"/>'

    def _step(self, step: Step) -> Iterator[str]:
        x, y = self._x(step.lane), self._y(step.row)
        if step.to is None:
            side, anchor = (x + 10, "start") if x <= WIDTH / 2 else (x - 10, "end")
            yield f'<text class="small" x="{side:g}" y="{y + 4:g}" text-anchor="{anchor}">{escape(step.text)}</text>'
            return
        end = self._x(step.to)
        way = 1 if end > x else -1
        gap = WIDTH / len(self.lanes) * way
        stop = end - gap / 2 if step.fails else end - 7 * way
        yield f'<path class="arrow" d="M{x + 7 * way:g} {y:g}H{stop:g}"/>'
        if step.fails:
            yield f'<path class="arrow" d="M{stop - 4:g} {y - 4:g}l8 8m0-8l-8 8"/>'
        else:
            yield f'<path class="tip" d="M{stop:g} {y:g}l{-7 * way} -4v8z"/>'
        yield f'<text x="{x + gap / 2:g}" y="{y - 6:g}" text-anchor="middle">{escape(step.text)}</text>'


PICTURES = [
    Picture(
        "handover.svg",
        "A lock is handed over in the queue",
        "web-1 acquires the lock at the server. web-2 asks for it, gets the first place in the queue, and sleeps. When"
        " web-1 releases the lock, the server grants it to web-2 in the same step, and notifies it. A newcomer that"
        " asks now gets a place behind. web-2 wakes and holds the lock.",
        ["web-1", "Redis", "web-2"],
        [
            Step(0, 0, "acquire", 1),
            Step(1, 1, "granted", 0),
            Step(2, 2, "acquire", 1),
            Step(3, 1, "place 1", 2),
            Step(4, 2, "sleeps"),
            Step(5, 0, "release", 1),
            Step(6, 1, "it is yours", 2),
            Step(7, 2, "works"),
        ],
        [Bar(0, 1, 5), Bar(2, 6, 8)],
    ),
    Picture(
        "watchdog.svg",
        "The watchdog renews a lock, and reports a lost one",
        "A process acquires a lock for 30 seconds. Every 10 seconds its watchdog renews the lease. Then the process is"
        " paused for longer than the lease. The server lets the lock go, and another process acquires it. When the"
        " first process goes on, its watchdog sees that the lease has ended: the lock counts as lost, the log and"
        " on_lost say so, and the with block ends with LockLostError.",
        ["process", "Redis", "another"],
        [
            Step(0, 0, "acquire, 30 s", 1),
            Step(1, 0, "renew (10 s)", 1),
            Step(2, 0, "renew (20 s)", 1),
            Step(3, 0, "paused"),
            Step(4, 1, "lease ends"),
            Step(5, 2, "acquire", 1),
            Step(6, 0, "goes on: lost,"),
            Step(7, 0, "LockLostError"),
        ],
        [Bar(0, 0, 4), Bar(0, 4, 6, lost=True), Bar(2, 5, 8)],
    ),
    Picture(
        "redlock.svg",
        "RedLock holds a lock while one node is down",
        "A process asks three independent nodes for the lock. Nodes A and B grant it, node C is down and does not"
        " reply. Two of three are a majority, so the process holds the lock. It renews the lock on A and B, and"
        " releases it there at the end. Once C is up again, it is sent what it missed.",
        ["process", "A", "B", "C, down"],
        [
            Step(0, 0, "acquire", 1),
            Step(1, 0, "acquire", 2),
            Step(2, 0, "acquire", 3, fails=True),
            Step(3, 0, "2 of 3: held"),
            Step(4, 0, "renew", 1),
            Step(5, 0, "renew", 2),
            Step(6, 0, "release", 1),
            Step(7, 0, "release", 2),
        ],
        [Bar(0, 1, 7), Bar(1, 0, 6), Bar(2, 1, 7)],
    ),
    Picture(
        "transaction.svg",
        "The transaction lies inside of the lock",
        "A view acquires the lock at the server, then begins the transaction in the database, and reads and writes."
        " Before COMMIT it asks the server whether the lock is still held; if not, it rolls back. After COMMIT it"
        " releases the lock, so the next owner reads what was committed.",
        ["Redis", "view", "database"],
        [
            Step(0, 1, "acquire", 0),
            Step(1, 1, "BEGIN", 2),
            Step(2, 1, "read, write", 2),
            Step(3, 1, "still held?", 0),
            Step(4, 0, "yes", 1),
            Step(5, 1, "COMMIT", 2),
            Step(6, 1, "release", 0),
        ],
        [Bar(0, 0, 6), Bar(2, 1, 5)],
    ),
    Picture(
        "redelivery.svg",
        "A redelivered message runs once",
        "Worker A runs task 7 for longer than the visibility timeout, so the broker delivers the message again, to"
        " worker B. B finds the lock held by task 7 itself. It sends the message again for later, and acknowledges"
        " this copy. A succeeds, and Redis remembers that task 7 is done. When the copy comes, B drops it.",
        ["worker A", "broker", "worker B"],
        [
            Step(0, 1, "task 7", 0),
            Step(1, 0, "runs it"),
            Step(2, 1, "timeout"),
            Step(3, 1, "task 7", 2),
            Step(4, 2, "locked: later", 1),
            Step(5, 0, "7 is done"),
            Step(6, 1, "task 7", 2),
            Step(7, 2, "drops it"),
        ],
        [Bar(0, 0, 5)],
    ),
]


if __name__ == "__main__":
    for picture in PICTURES:
        (Path(__file__).parent / picture.file).write_text(picture.svg())
