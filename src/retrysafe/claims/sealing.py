"""The form of an encrypted result, its binding to its record, and its way to the keyring and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from retrysafe.errors import ResultUnreadable
from retrysafe.protocol.records import ClaimRequest, State, StoredResult

if TYPE_CHECKING:
    from retrysafe.protocol.steps import At, Work

MEDIA_TYPE = "application/vnd.retrysafe.encrypted"
OVERHEAD = 512
"""By how many bytes, at most, encrypting a result makes it longer."""
FORMAT = 1
"""The layout of an encrypted result, kept where other results have the version of their codec."""
NONCE, TAG = 24, 16


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

    @classmethod
    def of_step(cls, boundary: str, scope: str, operation: str, work: Work, at: At) -> Bound:
        """Bind the result of a step to the address of its row."""
        address = "\0".join((operation, *at, str(work.generation)))
        return cls(boundary, scope, address, work.key, State.COMPLETED)


class Sealer(Protocol):
    """A keyring: `retrysafe.claims.encryption.Keyring`."""

    def seal(self, stored: StoredResult, bound: Bound) -> StoredResult: ...

    def open(self, stored: StoredResult, bound: Bound) -> StoredResult: ...


def seal(keyring: Sealer | None, stored: StoredResult | None, bound: Bound) -> StoredResult | None:
    """An answer as it is stored: encrypted if the boundary says so."""
    return stored if keyring is None or stored is None else keyring.seal(stored, bound)


def unseal(keyring: Sealer | None, stored: StoredResult, bound: Bound) -> StoredResult:
    """A stored answer as its codec wrote it; raises `ResultUnreadable`."""
    if keyring is not None:
        return keyring.open(stored, bound)
    if stored.media_type == MEDIA_TYPE:
        raise ResultUnreadable(
            f"The stored answer is encrypted with the key {label_of(stored).key_id!r}, and the boundary has no "
            "encryption="
        )
    return stored


class Label(NamedTuple):
    """The public part of an encrypted result, readable without its key."""

    key_id: str
    media_type: str
    codec_version: int
    size: int
    """Of the label itself, in bytes."""


def label_of(stored: StoredResult) -> Label:
    """Read the label; raises `ResultUnreadable` when it is of another format, or cut off."""
    if stored.codec_version != FORMAT:
        raise ResultUnreadable(
            f"The stored answer is encrypted in format {stored.codec_version}; this retrysafe reads format {FORMAT}"
        )
    body = stored.body or b""
    try:
        id_end = 1 + body[0]
        type_end = id_end + 2 + int.from_bytes(body[id_end : id_end + 2], "big")
        key_id, media_type = body[1:id_end].decode("ascii"), body[id_end + 2 : type_end].decode()
        version = int.from_bytes(body[type_end : type_end + 8], "big", signed=True)
    except (IndexError, UnicodeDecodeError):
        raise ResultUnreadable("The stored answer is cut off or altered: it has no readable label") from None
    size = type_end + 8
    if len(body) < size + NONCE + TAG:
        raise ResultUnreadable("The stored answer is cut off: it is too short to be an encrypted one")
    return Label(key_id, media_type, version, size)
