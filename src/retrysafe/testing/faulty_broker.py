"""A broker in memory that can be away, and behind which a relay can die."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from retrysafe.messaging.brokers.memory.broker import MemoryBroker
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

_AWAY = PublishResult(PublishStatus.UNAVAILABLE, "an outage of the test's broker")


class FaultyBroker(MemoryBroker):
    """A `MemoryBroker` for the two faults of publishing that each outbox has to bear."""

    _away = _kills = False

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Take no messages in this block: a relay's `run_once` raises `BrokerUnavailable`, and the messages stay."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    @contextmanager
    def relay_dies(self) -> Iterator[None]:
        """Let the relay that runs in this block die: its messages arrive, and it cannot mark them as published.

        The next relay publishes them again. Raises `AssertionError` if no relay had anything to publish.
        """
        self._kills = True
        with suppress(_Death):
            yield
            raise AssertionError("Nothing was published in this block, so no relay has died.")
        self._kills = False

    def put(self, envelopes: Sequence[Envelope]) -> list[PublishResult]:
        """Take messages, or do as the blocks above say."""
        if self._away:
            return [_AWAY] * len(envelopes)
        answer = super().put(envelopes)
        if self._kills:
            raise _Death
        return answer


class _Death(BaseException):
    """Ends a relay as SIGKILL would, as far as an exception can."""
