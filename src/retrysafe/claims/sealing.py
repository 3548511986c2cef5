"""Encrypted results: what binds one to the record it belongs to, on its way to the keyring and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from retrysafe.errors import ResultUnreadable
from retrysafe.protocol.records import ClaimRequest, State, StoredResult

if TYPE_CHECKING:
    from retrysafe.claims.encryption import Keyring

MEDIA_TYPE = "application/vnd.retrysafe.encrypted"
OVERHEAD = 512
"""By how many bytes, at most, encrypting a result makes it longer."""


class Bound(NamedTuple):
    """The claim that an encrypted result is bound to: it opens nowhere else, and not as another kind of answer."""

    boundary: str
    scope: str
    operation: str
    key: bytes
    state: State

    @classmethod
    def of(cls, request: ClaimRequest, state: State) -> Bound:
        """Bind answers to their request: from the claim's own values, never from the stored ones."""
        return cls(request.boundary, request.scope, request.operation, request.key, state)


def sealed(keyring: Keyring | None, stored: StoredResult | None, bound: Bound) -> StoredResult | None:
    """An answer as it is stored: encrypted if the boundary says so."""
    return stored if keyring is None or stored is None else keyring.seal(stored, bound)


def opened(keyring: Keyring | None, stored: StoredResult, bound: Bound) -> StoredResult:
    """A stored answer as its codec wrote it; raises `ResultUnreadable`."""
    if keyring is not None:
        return keyring.open(stored, bound)
    if stored.media_type == MEDIA_TYPE:
        from retrysafe.claims.encryption import label_of

        raise ResultUnreadable(
            f"The stored answer is encrypted with the key {label_of(stored).key_id!r}, and the boundary has no "
            "encryption="
        )
    return stored
