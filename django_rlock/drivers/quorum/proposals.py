"""The fencing token that a client proposes to the nodes, so that they agree on one token in a single round.

docs/architecture.md, under "RedLock's token", shows why a wrong proposal never breaks the order of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

AHEAD = 100_000
"""How far a node lets a proposal be ahead of its clock, in µs; ``token.lua`` has the same."""
LEAD = 2_000
"""How far a proposal is ahead of the nodes' estimated clock when it arrives, in µs. It covers commands that take longer
than usual, and the drift of clocks until they are read again."""


class Proposals:
    """The nodes' clock as this process last saw it, advanced by its own monotonic clock.

    A node accepts a proposal that is above its counter and its clock, and at most AHEAD above its clock; otherwise it
    draws a token of its own. So a wrong guess costs a round, but never the order of tokens. No wall clock is used.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None

    def next(self, now: float) -> int:
        """The proposal for calls sent at ``now`` (monotonic seconds); 0 as long as no node's clock is known."""
        if self._seen is None:
            return 0
        clock, at = self._seen
        return clock + int((now - at) * 1e6) + LEAD

    def learn(self, clocks: Sequence[int], sent_at: float) -> None:
        """Record the nodes' clocks, in µs, as replied to a call that was sent at a monotonic time.

        The next proposal must exceed the highest of them; a clock so far ahead that most nodes would refuse it is
        ignored.
        """
        usual = sorted(clocks)[len(clocks) // 2]
        self._seen = max(clock for clock in clocks if clock <= usual + AHEAD), sent_at
