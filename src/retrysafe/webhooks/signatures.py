"""The protocol of a provider's signature scheme, and what schemes share: secrets, comparison, time windows.

See `retrysafe.webhooks.providers` for short ones.
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
    """How one provider signs its deliveries and names its events. Pure: time is an argument, nothing is asked.

    `verify` is called first, and is the only one to see unverified bytes; `identify` is called for what it let
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


Secrets = str | bytes | Iterable[str | bytes]
"""One secret, or several while they are rotated: a signature by any of them is accepted."""

TOLERANCE: Duration = "5m"
"""How far a signed time may be from now, in both directions: what Standard Webhooks, Stripe and Slack recommend."""
PREFIX = b"whsec_"
"""What secrets begin with as Stripe and Standard Webhooks show them."""
_SECONDS = re.compile(r"[0-9]{1,11}")


def secrets_of(given: Secrets) -> tuple[bytes, ...]:
    """The secrets as bytes. Raises `ConfigurationError` when there is none, or one that everybody knows.

    That is an empty one, one of zeros, with which HMAC signs as without any, and ``whsec_`` with nothing behind it.
    """
    several = several_of(given)
    if not several or not all(isinstance(secret, str | bytes) for secret in several):
        raise ConfigurationError("secrets= is the endpoint's secret, as text or bytes, or several while rotating.")
    try:
        secrets = tuple(secret.encode() if isinstance(secret, str) else secret for secret in several)
    except UnicodeEncodeError as error:
        raise ConfigurationError("secrets=: a secret is no Unicode text.") from error
    if any(is_known(secret.strip().removeprefix(PREFIX)) for secret in secrets):
        raise ConfigurationError(
            "secrets= is empty, so that everybody could sign: give the endpoint's secret, or several while rotating."
        )
    return secrets


def several_of(given: Any) -> tuple[Any, ...]:
    """One secret or several, as several; none for what is neither."""
    if isinstance(given, str | bytes):
        return (given,)
    return tuple(given) if isinstance(given, Iterable) else ()


def is_known(key: bytes) -> bool:
    """Whether everybody can sign with a key: HMAC fills keys up with zeros."""
    return not key.strip(b" \t\r\n\0")


def signed_for(redelivery_window: float, tolerance: float) -> float:
    """Seconds for which an event may come again: the provider's, or those for which one signature is accepted.

    A delivery that is signed for the end of the tolerance's future is accepted until the end of its past.
    """
    return max(redelivery_window, 2 * tolerance)


def tolerance_of(given: Duration) -> float:
    """The tolerance in seconds. Raises `ConfigurationError` for what is no duration."""
    return durations.seconds(given, "tolerance")


def signs(secrets: Iterable[bytes], content: bytes) -> list[bytes]:
    """The HMAC-SHA256 of ``content`` by each secret, 32 bytes each."""
    return [hmac.digest(secret, content, "sha256") for secret in secrets]


def content_of(fields: Iterable[str], body: bytes, separator: bytes) -> bytes:
    """What is signed: the fields and then the body, with the separator between them.

    Raises `DeliveryRefused` for a field that contains the separator. Its end could be taken for the beginning of the
    next one, so one signature would be valid for several deliveries with other ids, times and bodies.
    """
    parts = [field.encode("utf-8", "surrogatepass") for field in fields]
    if any(separator in part for part in parts):
        raise DeliveryRefused("field-ambiguous", f"A signed field contains {separator!r}, which separates the fields.")
    return separator.join([*parts, body])


def matches(expected: Iterable[bytes], given: Iterable[str]) -> bool:
    """Whether any given signature is any of the expected ones.

    Every pair is compared, each in a time that does not depend on where they differ; text that is not ASCII equals
    none. (`hmac.compare_digest` of two texts raises for it, with which anybody could make a receiver fail.)
    """
    signatures = [signature.encode("utf-8", "surrogatepass") for signature in given]
    found = False
    for one in expected:
        for other in signatures:
            found |= hmac.compare_digest(one, other)
    return found


def check_signature(expected: Iterable[bytes], given: Iterable[str]) -> None:
    """Raise `DeliveryRefused` unless any given signature is any of the expected ones."""
    if not matches(expected, given):
        raise DeliveryRefused("signature-invalid", "No signature is one by a secret of this endpoint.")


def seconds_of(text: str) -> int:
    """A signed time as whole seconds since the Unix epoch; `DeliveryRefused` unless it is written as digits alone."""
    if not _SECONDS.fullmatch(text):
        raise DeliveryRefused("timestamp-invalid", "The signed time is not a number of seconds.")
    return int(text)


def check_time(timestamp: int, now: float, tolerance: float) -> None:
    """Raise `DeliveryRefused` unless a signed time is near: an older delivery may be a replay."""
    if abs(now - timestamp) > tolerance:
        raise DeliveryRefused(
            "timestamp-outside", f"It was signed {now - timestamp:+.0f} s ago, and {tolerance:g} s are allowed."
        )
