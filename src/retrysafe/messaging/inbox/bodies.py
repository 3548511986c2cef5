"""Dead letters that are too large for their store: all but the body is kept, with its size and digest. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from retrysafe.protocol.messages import Envelope

LARGE = 1 << 16
"""Bytes that every store takes."""
_SIZE, _DIGEST = "retrysafe-bytes", "retrysafe-sha256"
_LONGEST, _HEADERS = 1000, 1 << 15
"""Characters of an attribute, and of all headers, that are kept without the body."""
NOT_KEPT = "its body was not kept: the store refused it"


def is_large(envelope: Envelope) -> bool:
    """Whether a store may refuse a message for its size."""
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
    """Whether a message is one of those, which cannot be handled any more."""
    return not envelope.payload and _DIGEST in envelope.headers
