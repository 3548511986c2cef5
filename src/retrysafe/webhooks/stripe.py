"""Stripe: https://docs.stripe.com/webhooks#verify-manually

Stripe's library is 2.6 MB, needs ``requests``, reads the clock of the wall and lets times of the future pass; the
tests compare with it.
"""

from __future__ import annotations

from typing import Any

from retrysafe.protocol.records import Duration
from retrysafe.webhooks.deliveries import JSON, Head, Known, text_at
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.signatures import (
    TOLERANCE,
    Secrets,
    check_signature,
    check_time,
    content_of,
    seconds_of,
    secrets_of,
    signed_for,
    signs,
    tolerance_of,
)

HEADER = "Stripe-Signature"

_REDELIVERS = 3 * 86400.0
"""Live mode, by itself. By hand, events can be sent again for up to 30 days: then make the window longer."""


class Stripe:
    """Deliveries by Stripe: snapshot events and thin ones. The id (``evt_…``) is in the signed body.

    Arguments:
        secrets: the endpoint's secret (``whsec_…``), or several while it is rolled, or for several endpoints.
        tolerance: how far the signed time may be from now, in both directions.
    """

    name = "stripe"
    body_limit = 1 << 20
    media_types = (JSON,)

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = secrets_of(secrets)
        self._tolerance = tolerance_of(tolerance)
        self.redelivery_window = signed_for(_REDELIVERS, self._tolerance)

    def verify(self, head: Head, body: bytes, now: float) -> int:
        """Raise `DeliveryRefused` unless the time and ``body`` are signed; returns the time."""
        pairs = [item.strip().partition("=") for item in head.signed(HEADER).split(",")]
        times = [value for name, _, value in pairs if name == "t"]
        given = [value for name, _, value in pairs if name == "v1"]
        if len(times) != 1 or not given:
            raise DeliveryRefused("signature-missing", f"{HEADER} has no single t=, or no v1=.")
        content = content_of(times, body, b".")
        check_signature([digest.hex().encode() for digest in signs(self._secrets, content)], given)
        timestamp = seconds_of(times[0])
        check_time(timestamp, now, self._tolerance)
        return timestamp

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known:
        """The event. Deliveries of one event differ in ``pending_webhooks``, so its body is not compared."""
        return Known(text_at(document, "id"), text_at(document, "type"))
