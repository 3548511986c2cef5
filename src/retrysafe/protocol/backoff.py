"""Back-off with full jitter.

Sleeping a uniformly random time below an exponentially growing bound spreads competing retries best;
see M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from typing import NamedTuple


class Backoff(NamedTuple):
    """Bounds in seconds: the first one, and the one that is never exceeded."""

    base: float
    cap: float

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to sleep before try ``attempt`` (0 for the first); ``chance`` is random in [0, 1)."""
        return chance * min(self.cap, self.base * 2.0 ** min(attempt, 60))


POLLING = Backoff(base=0.01, cap=0.5)
"""The pauses of a waiting duplicate when nothing in its own process wakes it."""

RESTART = Backoff(base=0.02, cap=1.0)
"""The pauses before a transaction is run again after a serialization failure or deadlock."""

REFUSED = Backoff(base=0.01, cap=0.25)
"""The pauses before a request is put again that the store refused for the moment."""

SETTLING = Backoff(base=0.05, cap=1.0)
"""The pauses before an outcome is put again that the store has not taken."""


class RetrySchedule(NamedTuple):
    """The times of further tries: after pauses with full jitter, up to a deadline on a monotonic clock."""

    backoff: Backoff
    deadline: float
    tries: int = 0

    def next_pause(self, now: float, chance: float) -> float | None:
        """Seconds until the next try, which is not later than the deadline; None when the time is up."""
        left = self.deadline - now
        return None if left <= 0 else min(self.backoff.delay(self.tries, chance), left)

    def after_try(self) -> RetrySchedule:
        """Return the schedule after one more try."""
        return self._replace(tries=self.tries + 1)


class PollSchedule(NamedTuple):
    """The rest of a duplicate's wait: a deadline on a monotonic clock, and the polls so far."""

    deadline: float
    polls: int = 0

    def next_pause(self, now: float, lease_left: float | None, chance: float) -> float | None:
        """Seconds until the next look, or None when the time is up.

        Never sleeps past the deadline, nor far past the end of the lease that is waited for.
        """
        left = self.deadline - now
        if left <= 0:
            return None
        pause = max(0.002, POLLING.delay(self.polls, chance))
        if lease_left is not None and lease_left > 0:
            pause = min(pause, lease_left + 0.002)
        return min(pause, left)

    def next_poll(self) -> PollSchedule:
        """The patience left after one more look."""
        return self._replace(polls=self.polls + 1)
