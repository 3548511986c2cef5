"""A publisher that keeps what it is given: for tests, and for consumers in the same process."""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

_ACKED = PublishResult(PublishStatus.ACKED)


class MemoryPublisher:
    """Keeps every envelope, in the order in which they came."""

    def __init__(self) -> None:
        self.published: list[Envelope] = []

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Keep them."""
        self.published += envelopes
        return [_ACKED] * len(envelopes)

    def close(self) -> None:
        """Nothing to hang up."""


class AsyncMemoryPublisher:
    """`MemoryPublisher` for async code."""

    def __init__(self) -> None:
        self.published: list[Envelope] = []

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Keep them."""
        self.published += envelopes
        return [_ACKED] * len(envelopes)

    async def aclose(self) -> None:
        """Nothing to hang up."""
