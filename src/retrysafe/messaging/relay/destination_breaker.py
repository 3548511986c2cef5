"""A circuit breaker: whether a destination is given messages, and when one of them is let through as a probe. Pure."""

from __future__ import annotations

from retrysafe.protocol.backoff import Backoff

RECOVERY = Backoff(base=0.5, cap=30.0)
"""The rest of a destination that takes nothing: half of each pause is certain, so probes never storm."""
LONGEST_PAUSE = 3600.0
"""The most seconds for which a destination can ask to be left alone: one probe an hour does no harm."""


class Breaker:
    """Closed: everything passes. Open: nothing does until its time has come, then one probe at a time."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row, since something was answered."""
        self._until = 0.0
        self.probing = False
        """True if a probe is under way."""

    def admits(self, now: float) -> bool:
        """Tell whether a message passes now; while the breaker is open, that message is the probe."""
        if not self.failures:
            return True
        if self.probing or now < self._until:
            return False
        self.probing = True
        return True

    def is_shut(self, now: float) -> bool:
        """Tell whether nothing passes now."""
        return bool(self.failures) and (self.probing or now < self._until)

    def pause(self, now: float) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._until - now)

    def note_answer(self) -> bool:
        """The destination has answered: close. Returns whether that is news."""
        was_open, self.failures, self.probing = self.failures > 0, 0, False
        return was_open

    def note_failure(self, now: float, chance: float, pause: float = 0.0) -> float:
        """The destination took nothing, and may have asked for a pause; returns the seconds until the next probe.

        ``chance`` is random in [0, 1).
        """
        rest = max(min(pause, LONGEST_PAUSE), RECOVERY.delay(self.failures, 0.5 + chance / 2))
        self.failures, self._until, self.probing = self.failures + 1, now + rest, False
        return rest

    def note_nothing(self) -> None:
        """The probe has told nothing: the next message is one."""
        self.probing = False
