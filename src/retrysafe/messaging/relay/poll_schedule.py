"""The pauses between a relay's rounds: none after messages were found, growing while there are none. Pure."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.protocol.backoff import Backoff

RECOVERY = Backoff(base=0.1, cap=30.0)
"""The pauses of a relay when the store or the whole broker fails; those of one destination: `destination_breaker`."""


class Polls(NamedTuple):
    """The pace of a relay, in seconds, and what it has met so far."""

    shortest: float = 0.001
    longest: float = 1.0
    idle: int = 0
    failures: int = 0

    def after_messages(self) -> tuple[Polls, float]:
        """The schedule after messages were found, and how long to rest: not at all."""
        return self._replace(idle=0, failures=0), 0.0

    def after_nudge(self) -> Polls:
        """The schedule after a nudge: messages were written, and appear when their transaction commits."""
        return self._replace(idle=0)

    def empty(self, chance: float) -> tuple[Polls, float]:
        """The schedule after nothing was found, and how long to rest; ``chance`` is random in [0, 1)."""
        rest = min(self.longest, self.shortest * 2.0 ** min(self.idle, 60))
        return self._replace(idle=self.idle + 1, failures=0), rest * (0.75 + chance / 2)

    def after_failure(self, chance: float) -> tuple[Polls, float]:
        """The schedule after the store or the broker failed, and how long to rest."""
        rest = max(self.shortest, RECOVERY.delay(self.failures, chance))
        return self._replace(failures=self.failures + 1), rest
