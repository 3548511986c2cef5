"""Results: how they become bytes."""

from __future__ import annotations

from typing import Any, Protocol

from retrysafe.protocol.records import StoredResult


class Codec(Protocol):
    """Turns results into bytes and back. Decoding must give back the value that was encoded, types included.

    The boundary checks it: it decodes what it has encoded, and stores it only if nothing differs.
    """

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode ``value``; ``annotation`` is the declared return type, or None when there is none.

        Raises `ResultNotEncodable` when the value could not be decoded to an equal one.
        """
        ...

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        """Decode; raises `ResultNotEncodable` when the bytes cannot be read by this version."""
        ...
