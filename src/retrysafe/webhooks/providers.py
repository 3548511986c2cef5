"""The signature schemes of Stripe, GitHub and Slack.

Stripe: https://docs.stripe.com/webhooks#verify-manually. Its library is 2.6 MB, needs ``requests``, reads the wall
clock and accepts times of the future. GitHub:
https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries. It signs the body only: no time, no id
of the delivery, no name of the event. Slack: https://docs.slack.dev/authentication/verifying-requests-from-slack. Its
library fixes the tolerance, takes one secret, and raises ValueError or TypeError for a malformed time or signature. The
tests compare with these libraries.
"""

from __future__ import annotations

from typing import Any, Literal

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import Response
from retrysafe.protocol.keys import hash_of
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.answers import acknowledge, text
from retrysafe.webhooks.deliveries import FORM, JSON, Head, Known, text_at
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.signatures import (
    TOLERANCE,
    Secrets,
    check_signature,
    check_time,
    content_of,
    secrets_of,
    signs,
    tolerance_of,
    validity_of,
)

SLACK_SIGNATURE, SLACK_TIME = "X-Slack-Signature", "X-Slack-Request-Timestamp"

_SLACK_REDELIVERS = 25 * 3600.0
"""Three times within minutes, and with Delayed Events every hour for a day."""


class Slack:
    """Deliveries by Slack: of the Events API by ``event_id``; commands and interactions by ``trigger_id``.

    The type of an event is the type of the inner event ("app_mention"), or else of the document ("block_actions"), or
    else the command ("/weather"). A delivery without any id is identified by its signed body.

    Arguments:
        secrets: the app's signing secret, or several while it is being replaced.
        tolerance: how far the signed time may be from now, in both directions.
    """

    name = "slack"
    body_limit = 1 << 20
    media_types = (JSON, FORM)

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = secrets_of(secrets)
        self._tolerance = tolerance_of(tolerance)
        self.redelivery_window = validity_of(_SLACK_REDELIVERS, self._tolerance)

    def verify(self, head: Head, body: bytes, now: float) -> int:
        """Raise `DeliveryRefused` unless the time and ``body`` are signed; returns the time."""
        time, given = head.signed(SLACK_TIME), head.signed(SLACK_SIGNATURE)
        content = content_of(["v0", time], body, b":")
        check_signature([b"v0=" + digest.hex().encode() for digest in signs(self._secrets, content)], [given])
        return check_time(time, now, self._tolerance)

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """The event; or the answer to the challenge with which Slack verifies a URL."""
        kind = text_at(document, "type")
        if kind == "url_verification":
            return text(text_at(document, "challenge"))
        inner = document.get("event")
        if kind == "event_callback" and isinstance(inner, dict):
            kind = text_at(inner, "type")
        id = text_at(document, "event_id") or text_at(document, "trigger_id") or hash_of(body)
        return Known(id, kind or text_at(document, "command"))


GITHUB_SIGNATURE, DELIVERY, EVENT = "X-Hub-Signature-256", "X-GitHub-Delivery", "X-GitHub-Event"
_PREFIX = "sha256="
Identity = Literal["body", "delivery"]


class GitHub:
    """Deliveries by GitHub.

    Arguments:
        secrets: the webhook's secret, or several during a rotation.
        identity: which part of a delivery identifies an event. The id in ``X-GitHub-Delivery`` is not signed, so an
            attacker who has seen one delivery can send it again under a new id. "body": the signed body alone is
            the key; the same body under another id or event name is refused with 422 and never handled. "delivery":
            body and id are the key, for events whose bodies can be equal, such as ``workflow_dispatch``; then a
            captured delivery under a new id runs again.

    GitHub signs no time: after the boundary's window, a captured delivery runs again.
    """

    name = "github"
    redelivery_window = 3 * 86400.0
    """By hand or API; GitHub never delivers again by itself."""
    body_limit = 25 << 20
    media_types = (JSON, FORM)

    def __init__(self, secrets: Secrets, *, identity: Identity = "body") -> None:
        if identity not in ("body", "delivery"):
            raise ConfigurationError(f"identity={identity!r}: expected 'body' or 'delivery'.")
        self._secrets = secrets_of(secrets)
        self._identity = identity

    def verify(self, head: Head, body: bytes, now: float) -> None:
        """Raise `DeliveryRefused` unless ``body`` is signed."""
        given = head.signed(GITHUB_SIGNATURE)
        expected = [_PREFIX.encode() + digest.hex().encode() for digest in signs(self._secrets, body)]
        check_signature(expected, [given])

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """The event; the ``ping`` after a webhook was made is answered as it is."""
        delivery, event = head.one(DELIVERY) or "", head.one(EVENT) or ""
        if not event:
            raise DeliveryRefused("payload-invalid", f"There is no {EVENT}.")
        if event == "ping":
            return acknowledge()
        known = {"type": event, "delivery": delivery}
        identity = hash_of(body)
        if self._identity == "delivery":
            identity = hash_of(content_of([delivery], body, b"\n"))
        return Known(delivery, event, f"github {identity}", known)


HEADER = "Stripe-Signature"

_STRIPE_REDELIVERS = 3 * 86400.0
"""Live mode, by itself. By hand, events can be sent again for up to 30 days: then make the window longer."""


class Stripe:
    """Deliveries by Stripe: snapshot events and thin ones. The id (``evt_…``) is in the signed body.

    Arguments:
        secrets: the endpoint's secret (``whsec_…``), or several during a rotation, or for several endpoints.
        tolerance: how far the signed time may be from now, in both directions.
    """

    name = "stripe"
    body_limit = 1 << 20
    media_types = (JSON,)

    def __init__(self, secrets: Secrets, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets = secrets_of(secrets)
        self._tolerance = tolerance_of(tolerance)
        self.redelivery_window = validity_of(_STRIPE_REDELIVERS, self._tolerance)

    def verify(self, head: Head, body: bytes, now: float) -> int:
        """Raise `DeliveryRefused` unless the time and ``body`` are signed; returns the time."""
        pairs = [item.strip().partition("=") for item in head.signed(HEADER).split(",")]
        times = [value for name, _, value in pairs if name == "t"]
        given = [value for name, _, value in pairs if name == "v1"]
        if len(times) != 1 or not given:
            raise DeliveryRefused("signature-missing", f"{HEADER} has no single t=, or no v1=.")
        content = content_of(times, body, b".")
        check_signature([digest.hex().encode() for digest in signs(self._secrets, content)], given)
        return check_time(times[0], now, self._tolerance)

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known:
        """The event. Deliveries of one event differ in ``pending_webhooks``, so its body is not compared."""
        return Known(text_at(document, "id"), text_at(document, "type"))
