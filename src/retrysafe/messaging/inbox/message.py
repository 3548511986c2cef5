"""A message as its handler finds it; of a dead letter that is too large for its store, all but the body is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from retrysafe.claims.claim import Claim
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.errors import MessageUnreadable
from retrysafe.protocol.messages import Envelope

LARGE = 1 << 16
"""Bytes that every store takes."""
_SIZE, _DIGEST = "retrysafe-bytes", "retrysafe-sha256"
_LONGEST, _HEADERS = 1000, 1 << 15
"""Characters of an attribute, and of all headers, that are kept without the body."""
NOT_KEPT = "its body was not kept: the store refused it"


def is_large(envelope: Envelope) -> bool:
    """Tell whether a store may refuse a message for its size."""
    texts = sum(len(part) for part in envelope if isinstance(part, str))
    return envelope.size + texts > LARGE


def without_body(envelope: Envelope) -> Envelope:
    """The message as every store takes it; two of its headers tell the size of its body and its SHA-256."""
    cut: dict[str, Any] = {
        name: part[:_LONGEST] for name, part in zip(envelope._fields, envelope, strict=True) if isinstance(part, str)
    }
    headers = envelope.headers if envelope.size - len(envelope.payload) <= _HEADERS else {}
    told = {_SIZE: str(len(envelope.payload)), _DIGEST: hashlib.sha256(envelope.payload).hexdigest()}
    return envelope._replace(**cut)._replace(payload=b"", headers={**headers, **told})


def is_without_body(envelope: Envelope) -> bool:
    """Tell whether a message is one of those, which cannot be handled any more."""
    return not envelope.payload and _DIGEST in envelope.headers


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class InboxMessage(Generic[T_co]):
    """One message in its handler.

    Attributes:
        envelope: the message as it came: its id, topic, key, type, source, sequence, headers and payload.
        data: the payload, parsed from JSON where that is its media type, else its bytes; or what ``parse=`` of the
            handler made of that.
        tx: the transaction of a transactional boundary, in which the handler works. See `Claim.tx`.
        claim: the claim around the handler; in a batch there is none of the message's own.
        late: whether it was written longer ago than the boundary's window, or redriven after it: a record of an
            earlier handling would be gone.
    """

    envelope: Envelope
    data: T_co = field(repr=False)
    tx: Any = field(default=None, repr=False, compare=False)
    _claim: Claim | None = field(default=None, repr=False, compare=False)
    late: bool = False

    @property
    def claim(self) -> Claim:
        """The claim around the handler."""
        if self._claim is None:
            raise ConfigurationError("message.claim does not exist in a batch, whose messages are claimed together.")
        return self._claim


def data_of(envelope: Envelope, parse: Callable[[Any], Any] | None) -> Any:
    """The payload as the handler takes it; raises `MessageUnreadable` for JSON that is none."""
    if is_without_body(envelope):
        raise MessageUnreadable(f"It cannot be handled again: {NOT_KEPT}.")
    found: Any = envelope.payload
    kind = envelope.media_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            found = _JSON.decode(found.decode(json.detect_encoding(found), "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise MessageUnreadable(f"Its payload should be {kind}: {error}") from error
    return found if parse is None else parse(found)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)
"""Made once: ``json.loads`` with this option makes one for each payload."""
