"""Standard Webhooks 1.0, which OpenAI, Anthropic, Twilio, Clerk, Resend, Supabase and others send.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

The library of the specification reads the wall clock, has a fixed tolerance, takes one secret, and raises foreign
errors for malformed signatures; the tests compare with it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.deliveries import JSON, Head, Known, text_at
from retrysafe.webhooks.signatures import (
    PREFIX,
    TOLERANCE,
    Secrets,
    check_signature,
    check_time,
    content_of,
    is_known,
    secrets_of,
    several_of,
    signs,
    tolerance_of,
    validity_of,
)


class StandardWebhooks:
    """Deliveries by Standard Webhooks, with symmetric signatures (``v1``).

    Arguments:
        secrets: the endpoint's secret (``whsec_…``, or its base64), or several during a rotation. Bytes without
            ``whsec_`` are used unchanged.
        tolerance: how far the signed time may be from now, in both directions.
        headers: prefix of the header fields' names: "svix" for providers that still use Svix's names.
        redelivery_window: for how long the provider may deliver an event again; by default the schedule of the
            specification, which ends after 76 hours.

    Raises `ConfigurationError` for a secret that is empty or not base64. The asymmetric ``v1a`` is not supported.
    """

    name = "standard-webhooks"
    body_limit = 1 << 20
    media_types = (JSON,)

    def __init__(
        self,
        secrets: Secrets,
        *,
        tolerance: Duration = TOLERANCE,
        headers: str = "webhook",
        redelivery_window: Duration = "76h",
    ) -> None:
        self._secrets = keys_of(secrets)
        self._tolerance = tolerance_of(tolerance)
        self._id, self._time, self._signature = (f"{headers}-{name}" for name in ("id", "timestamp", "signature"))
        self.redelivery_window = validity_of(tolerance_of(redelivery_window), self._tolerance)

    def verify(self, head: Head, body: bytes, now: float) -> int:
        """Raise `DeliveryRefused` unless the id, the time and ``body`` are signed; returns the time."""
        name, time = head.signed(self._id), head.signed(self._time)
        versions = [entry.partition(",") for entry in head.signed(self._signature).split(" ")]
        expected = [text.encode() for text in signatures(self._secrets, name, time, body)]
        check_signature(expected, [text for version, _, text in versions if version == "v1"])
        return check_time(time, now, self._tolerance)

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known:
        """The event: its id is signed, and its type is in the document."""
        return Known(head.signed(self._id), text_at(document, "type"))


def keys_of(secrets: Secrets) -> tuple[bytes, ...]:
    """The keys of the secrets. Raises `ConfigurationError` for an invalid secret."""
    several = several_of(secrets)
    checked = zip(several, secrets_of(several), strict=True)
    return tuple(_key(secret, encoded=isinstance(given, str)) for given, secret in checked)


def _key(secret: bytes, *, encoded: bool) -> bytes:
    if not encoded and not secret.startswith(PREFIX):
        return secret
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ConfigurationError("secrets=: a secret must be whsec_ and base64, as the provider shows it.") from error
    if is_known(key):
        raise ConfigurationError("secrets=: a secret is empty or consists of zeros, so anybody could sign.")
    return key


def signatures(keys: tuple[bytes, ...], id: str, timestamp: str, body: bytes) -> list[str]:
    """The signature by each key, in base64: over id, time and body with full stops between them.

    Raises `DeliveryRefused` for an id or time that contains a full stop.
    """
    content = content_of([id, timestamp], body, b".")
    return [base64.b64encode(digest).decode() for digest in signs(keys, content)]
