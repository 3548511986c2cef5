"""Slack: https://docs.slack.dev/authentication/verifying-requests-from-slack

Slack's library fixes the tolerance, takes one secret, and raises ValueError or TypeError for a malformed time or
signature, with which anybody can make a receiver fail; the tests compare with it.
"""

from __future__ import annotations

from typing import Any

from retrysafe.http.messages import Response
from retrysafe.protocol.keys import hash_of
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.answers import text
from retrysafe.webhooks.deliveries import FORM, JSON, Head, Known, text_at
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

SIGNATURE, TIME = "X-Slack-Signature", "X-Slack-Request-Timestamp"

_REDELIVERS = 25 * 3600.0
"""Three times within minutes, and with Delayed Events every hour for a day."""


class Slack:
    """Deliveries by Slack: of the Events API by ``event_id``; commands and interactions by ``trigger_id``.

    The type of an event is that of what happened ("app_mention"), else that of the document ("block_actions"), else
    the command ("/weather"). What has no id at all is told apart by its signed body.

    Arguments:
        secrets: the app's signing secret, or several while it is regenerated.
        tolerance: how far the signed time may be from now, in both directions.
    """

    name = "slack"
    body_limit = 1 << 20
    media_types = (JSON, FORM)

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = secrets_of(secrets)
        self._tolerance = tolerance_of(tolerance)
        self.redelivery_window = signed_for(_REDELIVERS, self._tolerance)

    def verify(self, head: Head, body: bytes, now: float) -> int:
        """Raise `DeliveryRefused` unless the time and ``body`` are signed; returns the time."""
        time, given = head.signed(TIME), head.signed(SIGNATURE)
        content = content_of(["v0", time], body, b":")
        check_signature([b"v0=" + digest.hex().encode() for digest in signs(self._secrets, content)], [given])
        timestamp = seconds_of(time)
        check_time(timestamp, now, self._tolerance)
        return timestamp

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """The event; the challenge by which Slack verifies a URL is given back."""
        kind = text_at(document, "type")
        if kind == "url_verification":
            return text(text_at(document, "challenge"))
        inner = document.get("event")
        if kind == "event_callback" and isinstance(inner, dict):
            kind = text_at(inner, "type")
        id = text_at(document, "event_id") or text_at(document, "trigger_id") or hash_of(body)
        return Known(id, kind or text_at(document, "command"))
