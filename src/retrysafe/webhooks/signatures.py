"""The protocol of a provider's signature scheme, and the common parts of schemes: secrets, comparison, time windows.

See `retrysafe.webhooks.providers` for examples.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import Response
from retrysafe.protocol import durations
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.deliveries import Head, Known
from retrysafe.webhooks.errors import DeliveryRefused


class Scheme(Protocol):
    """Signs one provider's deliveries, and identifies its events. Pure: time is an argument, and there is no I/O.

    `verify` is called first, and only it reads unverified bytes; `identify` is called for deliveries that it accepts.
    Both raise `DeliveryRefused`.
    """

    @property
    def name(self) -> str:
        """The name of the scheme in logs and metrics; part of the default operation."""
        ...

    @property
    def redelivery_window(self) -> float:
        """Seconds for which an event may be delivered again. The boundary's window must be at least as long.

        The provider may deliver it again, and so may an attacker who has seen a delivery, as long as its signed time is
        accepted: see `signatures.validity_of`.
        """
        ...

    @property
    def body_limit(self) -> int:
        """The largest body that the provider sends, in bytes."""
        ...

    @property
    def media_types(self) -> Collection[str]:
        """Media types that the provider sends: ``deliveries.JSON``, ``deliveries.FORM`` or both. Others are refused."""
        ...

    def verify(self, head: Head, body: bytes, now: float) -> int | None:
        """Raise unless the provider signed ``body``, and its signed time, if there is one, is near ``now``.

        ``now`` is in seconds since the Unix epoch. Returns the signed time in whole seconds; None if the scheme signs
        no time. If more than the body is signed, join the fields by `signatures.content_of`, which refuses a field that
        contains the separator.
        """
        ...

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known | Response:
        """The event of a verified delivery; or the response to a delivery without an event, such as a handshake."""
        ...


Secrets = str | bytes | Iterable[str | bytes]
"""One secret, or several while they are rotated: a signature by any of them is accepted."""

TOLERANCE: Duration = "5m"
"""The largest distance of a signed time from now, as Standard Webhooks, Stripe and Slack recommend."""
PREFIX = b"whsec_"
"""The prefix of secrets in the form that Stripe and Standard Webhooks show."""
_SECONDS = re.compile(r"[0-9]{1,11}")


def secrets_of(given: Secrets) -> tuple[bytes, ...]:
    """The secrets as bytes. Raises `ConfigurationError` when there is none, or when one can be guessed.

    That is an empty secret, one of zeros, which HMAC treats as empty, and ``whsec_`` without a secret after it.
    """
    several = several_of(given)
    if not several or not all(isinstance(secret, str | bytes) for secret in several):
        raise ConfigurationError(
            "secrets= must be the endpoint's secret, as text or bytes, or several during a rotation."
        )
    try:
        secrets = tuple(secret.encode() if isinstance(secret, str) else secret for secret in several)
    except UnicodeEncodeError as error:
        raise ConfigurationError("secrets=: a secret is not Unicode text.") from error
    if any(is_known(secret.strip().removeprefix(PREFIX)) for secret in secrets):
        raise ConfigurationError(
            "secrets= is empty, so anybody could sign: give the endpoint's secret, or several during a rotation."
        )
    return secrets


def several_of(given: Any) -> tuple[Any, ...]:
    """One or several secrets as a tuple; empty for anything else."""
    if isinstance(given, str | bytes):
        return (given,)
    return tuple(given) if isinstance(given, Iterable) else ()


def is_known(key: bytes) -> bool:
    """Tell whether a key is empty: HMAC pads keys with zeros."""
    return not key.strip(b" \t\r\n\0")


def validity_of(redelivery_window: float, tolerance: float) -> float:
    """Seconds for which an event may be delivered again: by the provider, or with one signature, whichever is longer.

    A delivery whose signed time is as far in the future as the tolerance allows is accepted for twice the tolerance.
    """
    return max(redelivery_window, 2 * tolerance)


def tolerance_of(given: Duration) -> float:
    """The tolerance in seconds. Raises `ConfigurationError` for an invalid duration."""
    return durations.seconds(given, "tolerance")


def signs(secrets: Iterable[bytes], content: bytes) -> list[bytes]:
    """The HMAC-SHA256 of ``content`` by each secret, 32 bytes each."""
    return [hmac.digest(secret, content, "sha256") for secret in secrets]


def content_of(fields: Iterable[str], body: bytes, separator: bytes) -> bytes:
    """The signed bytes: the fields and then the body, with the separator between them.

    Raises `DeliveryRefused` for a field that contains the separator. Its end could be taken for the beginning of the
    next one, so one signature would be valid for several deliveries with other ids, times and bodies.
    """
    parts = [field.encode("utf-8", "surrogatepass") for field in fields]
    if any(separator in part for part in parts):
        raise DeliveryRefused("field-ambiguous", f"A signed field contains {separator!r}, which separates the fields.")
    return separator.join([*parts, body])


def matches(expected: Iterable[bytes], given: Iterable[str]) -> bool:
    """Tell whether any given signature equals any of the expected ones.

    Every pair is compared, in a time that does not depend on where they differ; text that is not ASCII equals none.
    (`hmac.compare_digest` would raise for such text, so that any client could make a receiver fail.)
    """
    signatures = [signature.encode("utf-8", "surrogatepass") for signature in given]
    found = False
    for one in expected:
        for other in signatures:
            found |= hmac.compare_digest(one, other)
    return found


def check_signature(expected: Iterable[bytes], given: Iterable[str]) -> None:
    """Raise `DeliveryRefused` unless any given signature equals any of the expected ones."""
    if not matches(expected, given):
        raise DeliveryRefused("signature-invalid", "No signature was made with a secret of this endpoint.")


def check_time(text: str, now: float, tolerance: float) -> int:
    """A signed time, in seconds since the Unix epoch.

    Raises `DeliveryRefused` unless it consists of digits and is near ``now``: an older delivery may be a replay.
    """
    if not _SECONDS.fullmatch(text):
        raise DeliveryRefused("timestamp-invalid", "The signed time is not a number of seconds.")
    timestamp = int(text)
    if abs(now - timestamp) > tolerance:
        raise DeliveryRefused(
            "timestamp-outside", f"It was signed {now - timestamp:+.0f} s ago, and {tolerance:g} s are allowed."
        )
    return timestamp
