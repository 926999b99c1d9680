"""When to trust that a lease has run out because its holder is gone.

It may also have run out because it could not be extended: the server was away or silent, its clock
jumped, or our own process was frozen. After such trouble we hold back, so that live holders extend
their leases first. If no recent call shows that the server is there, we probe it with a harmless
call and wait a moment.

If the server's clock was set back, the deadlines of dead holders are far ahead. Live holders have
extended theirs by the new clock, so we can tell them apart.

The monitor and the caretaker follow these rules, for each site separately.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mx_rmq.net.server_clock import JUMP

if TYPE_CHECKING:
    from mx_rmq.net.availability import Link
    from mx_rmq.net.server_clock import ServerClock

FROZEN: Final = 1.0  # seconds; if a step comes later than that, the process was frozen

DECIDE_WITHIN: Final = 30.0  # seconds for which a message is leased that was taken over


def was_frozen(expected_at: float) -> bool:
    """Return whether the process was frozen: a step comes much later than expected."""
    return time.monotonic() - expected_at > FROZEN


def decide_within(lease: float) -> int:
    """Return how long to lease a message that was taken over, in ms: until we have decided."""
    return round(min(lease, DECIDE_WITHIN) * 1000)


class Deadlines:
    """Decides whether to trust the deadlines of one site. Times are monotonic."""

    def __init__(self, lease: float, link: Link, clock: ServerClock) -> None:
        self.link = link
        self.clock = clock
        self.hold_back = min(lease / 3, 10.0) + 1.0
        """Seconds after trouble in which every live holder extends its leases."""
        self._moment = min(lease / 4, 1.0)
        """Seconds in which a holder extends a lease once a silent server answers again."""
        self.decide_within = decide_within(lease)
        self.jump = round(min(JUMP, lease / 3) * 1000)
        """Milliseconds by which the server's time may differ from what we expect."""
        self.far = round((lease + JUMP) * 1000)
        """Milliseconds ahead, beyond which a deadline was set before the clock was set back."""
        self._expected_at = float("inf")
        self._frozen_at = float("-inf")
        self._silent_at = float("-inf")
        self._probed_at = float("-inf")
        """When the server answered a harmless call, made because we knew nothing about it."""
        self._slow: set[str] = set()  # topics whose last call ran late, though the clock is right
        self._behind_since: dict[str, float] = {}
        """By topic, since when we know that the server's clock was set back."""

    def step_begins(self) -> None:
        """Note whether the process was frozen since the last step."""
        now = time.monotonic()
        if was_frozen(self._expected_at) and self._is_long_ago(self._frozen_at, now):
            self._frozen_at = now

    def step_ends(self, pause: float) -> None:
        """Note when the next step is expected."""
        self._expected_at = time.monotonic() + pause

    def pause(self) -> float:
        """Return how many seconds to hold back; 0 or less: trust the deadlines."""
        late_at = self.link.late_at
        if self._is_long_ago(self._silent_at, late_at):
            self._silent_at = late_at
        trouble_at = max(self.link.back_at, self.clock.jumped_at, self._frozen_at, self._silent_at)
        until = max(trouble_at + self.hold_back, self._probed_at + self._moment)
        return until - time.monotonic()

    def _is_long_ago(self, at: float, now: float) -> bool:
        """Return whether to hold back again. If always, a slow server would stop all recovery."""
        return now - at > 4 * self.hold_back

    def overdue_for(self, since: float) -> float:
        """Return for how many seconds holders could have extended their leases, since a time."""
        trouble_at = max(self.link.back_at, self.link.late_at, self.clock.jumped_at)
        return time.monotonic() - max(since, trouble_at)

    def knows_server(self) -> bool:
        """Return whether the server has answered long enough for holders to extend."""
        probed = time.monotonic() - self._probed_at <= 4 * self._moment
        return probed or self.link.is_known(self._moment)

    def probed(self, *, was_failing: bool) -> None:
        """Note that the server has answered a harmless call; `was_failing`: before that call."""
        self._probed_at = time.monotonic()
        if was_failing:
            self._silent_at = self._probed_at

    def expected(self, topic: str) -> int | None:
        """Return the server time at which a call must run; None: at any time."""
        return None if topic in self._slow or not self.clock.is_known else self.clock.now()

    def surprised(self, topic: str) -> None:
        """Note that a call did not run when it was expected, so it took nothing over.

        The clock was set, or the call was under way during an outage in which no lease could be
        extended. We hold back, then trust the next call: a server may always be late.
        """
        self._slow.add(topic)
        self._silent_at = time.monotonic()

    def not_surprised(self, topic: str) -> None:
        self._slow.discard(topic)

    def note_behind(self, topic: str, ms: int, checked_at: float) -> None:
        """Note how far the server's clock is behind what it has been."""
        if ms <= JUMP * 1000:
            self._behind_since.pop(topic, None)
        elif topic not in self._behind_since:
            jumped_at = self.clock.jumped_at
            self._behind_since[topic] = jumped_at if jumped_at > 0 else checked_at

    def sweep_at(self, topic: str) -> float:
        """Return from when on far deadlines must be those of dead holders."""
        return self._behind_since.get(topic, float("inf")) + self.hold_back

    def may_sweep(self, topic: str) -> bool:
        """Return whether live holders had time to extend since the clock was set back."""
        return time.monotonic() >= self.sweep_at(topic)
