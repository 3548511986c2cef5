"""The protocol that a provider's scheme has; see `retrysafe.webhooks.github` for a short one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from retrysafe.http.messages import Response
from retrysafe.webhooks.deliveries import Head, Known


class Scheme(Protocol):
    """How one provider signs its deliveries and names its events. Pure: time is an argument, nothing is asked.

    `verify` is called first and alone sees bytes that nobody has vouched for; `identify` is called for what it let
    through. Both raise `DeliveryRefused`.
    """

    @property
    def name(self) -> str:
        """What the scheme is called in logs and metrics; part of the default operation."""
        ...

    @property
    def redelivery_window(self) -> float:
        """Seconds for which an event may come again. The boundary's window must be as long.

        The provider delivers it again, and so can who has seen a delivery, while its signed time is accepted:
        `signatures.signed_for`.
        """
        ...

    @property
    def body_limit(self) -> int:
        """The most bytes that the provider sends."""
        ...

    @property
    def media_types(self) -> Collection[str]:
        """What the provider sends: ``deliveries.JSON``, ``deliveries.FORM`` or both. Any other body is refused."""
        ...

    def verify(self, head: Head, body: bytes, now: float) -> int | None:
        """Raise unless the provider signed ``body``, near ``now`` (seconds since the Unix epoch) where it signs a time.

        Returns the signed time in whole seconds; None where there is none. Where more than the body is signed, join
        the fields by `signatures.content_of`, which refuses a field that contains the separator.
        """
        ...

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """Which event a verified delivery is about; or the response to what is no event, such as a handshake."""
        ...
