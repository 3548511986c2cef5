"""GitHub: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries

GitHub signs the body, and nothing else: neither a time, nor the id of the delivery, nor the name of the event.
"""

from __future__ import annotations

from typing import Any, Literal

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import Response
from retrysafe.protocol.keys import hash_of
from retrysafe.webhooks.answers import acknowledged
from retrysafe.webhooks.deliveries import FORM, JSON, Head, Known
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.signatures import Secrets, check_signature, content_of, secrets_of, signs

SIGNATURE, DELIVERY, EVENT = "X-Hub-Signature-256", "X-GitHub-Delivery", "X-GitHub-Event"
_PREFIX = "sha256="
Identity = Literal["body", "delivery"]


class GitHub:
    """Deliveries by GitHub.

    Arguments:
        secrets: the webhook's secret, or several while it is rotated.
        identity: what makes a delivery another event. The id in ``X-GitHub-Delivery`` is not signed, so whoever has
            seen one delivery can send it again under a new id. "body": the signed body alone is the key, and the
            same body under another id or event name is refused with 422, loudly, never run. "delivery": body and id
            are the key, for events of which two can be alike byte by byte, such as ``workflow_dispatch``; then a
            captured delivery under a new id runs again.

    There is no signed time: after the boundary's window a captured delivery runs again.
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
        given = head.signed(SIGNATURE)
        expected = [_PREFIX.encode() + digest.hex().encode() for digest in signs(self._secrets, body)]
        check_signature(expected, [given])

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """The event; the ``ping`` after a webhook was made is answered as it is."""
        delivery, event = head.one(DELIVERY) or "", head.one(EVENT) or ""
        if not event:
            raise DeliveryRefused("payload-invalid", f"There is no {EVENT}.")
        if event == "ping":
            return acknowledged()
        known = {"type": event, "delivery": delivery}
        identity = hash_of(body)
        if self._identity == "delivery":
            identity = hash_of(content_of([delivery], body, b"\n"))
        return Known(delivery, event, f"github {identity}", known)
