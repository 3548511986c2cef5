"""The counted keys of a scope, in a document of their own: for stores that cannot count records by their scope.

The document is written only if it is as it was read, so that keys are counted exactly, one after another. It is no part
of a transaction, or two transactions of a scope would be in each other's way.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.backends.documents import COUNTING, DocumentStore, Later, Write, version_in
from retrysafe.protocol import quotas
from retrysafe.protocol.records import Allowance, ClaimRequest, Micros, QuotaRefusal
from retrysafe.protocol.requests import Ask, Program, ask

QUOTAS = (
    "exactly: a document of its own has the keys of a scope. A key counts from its first claim to the end of memory=, "
    "also if its record is removed earlier or the claim fails. Three more requests for a new key, one for a known one"
)
LARGEST_QUOTA = 20_000
"""The number of keys that fit into an item of DynamoDB, which has 400 KB."""
_ROUNDS = 20
"""The number of rounds in which a count can lose a race before its key is refused for a second."""
_ENTRY = struct.Struct(">8sq")


class CountedKeys(NamedTuple):
    """The counted keys as they were read: the version of their document, the time, and when each key was made.

    A key goes by its first eight bytes.
    """

    version: Mapping[str, Any]
    now: Micros
    made: Mapping[bytes, Micros]


class KeyCountingStore(DocumentStore):
    """A store of documents that keeps quotas."""

    def admit(self, request: ClaimRequest) -> Program[QuotaRefusal | None]:
        """Count a key that has no record, if there is room."""
        found = Ask(self.apart(self.find(request.key)), self.document)
        if (yield from ask(found, again=True)) is not None or (allowance := request.quota) is None:
            return None
        memory = request.clocks.memory
        for _ in range(_ROUNDS):
            counted = yield from ask(find(self, allowance.holder), again=True)
            if counted is None:
                yield from ask(write(self, allowance.holder, None, {}, request.attempt, memory), again=True)
                continue
            if request.key[:8] in counted.made:
                return None
            since = counted.now - (allowance.period if allowance.outstanding is None else memory)
            made = {key: at for key, at in counted.made.items() if at > since}
            refusal = _judge(sorted(made.values()), allowance, counted.now, memory)
            if refusal is not None:
                return refusal
            made[request.key[:8]] = counted.now
            if (yield from ask(write(self, allowance.holder, counted, made, request.attempt, memory), again=True)):
                return None
        return quotas.room_again(allowance)


def find(store: DocumentStore, holder: bytes) -> Ask[CountedKeys | None]:
    def parse(answer: Any) -> CountedKeys | None:
        document = store.document(answer)
        if document is None:
            return None
        made = dict(_ENTRY.iter_unpack(document.get("made", b"")))
        return CountedKeys(version_in(document), document.get("now", store.clock()), made)

    return Ask(store.apart(store.find(_place(holder))), parse)


def write(
    store: DocumentStore,
    holder: bytes,
    before: CountedKeys | None,
    made: Mapping[bytes, Micros],
    attempt: str,
    memory: Micros,
) -> Ask[bool]:
    """Write the counted keys, if they are as before; before the first key, without any: the answer tells no time."""
    sets: dict[str, Any] = {"attempt": attempt, "state": COUNTING, "tombstone_until": Later(memory)}
    if before is None:
        written = Write(_place(holder), None, frozenset(), {**sets, "version": 0}, settled=True)
    else:
        sets["made"] = b"".join(_ENTRY.pack(key, at) for key, at in made.items())
        written = Write(_place(holder), before.version, frozenset(), sets, raises=True, settled=True)
    return Ask(store.apart(store.render(store.fill_in(written))), store.is_done)


def age(store: DocumentStore, key: bytes, micros: Micros) -> Program[None]:
    """Age the count of a key, for tests."""
    record = yield from ask(store.read(key))
    if record is None:
        return
    by = quotas.holder(record.boundary, record.scope)
    counted = yield from ask(find(store, by))
    if counted is not None and key[:8] in counted.made:
        made = {**counted.made, key[:8]: counted.made[key[:8]] - micros}
        clocks = record.tombstone_until - record.updated
        yield from ask(write(store, by, counted, made, record.attempt, clocks))


def _place(holder: bytes) -> bytes:
    return hashlib.sha256(b"retrysafe:quota:" + holder).digest()


def _judge(made: list[Micros], allowance: Allowance, now: Micros, memory: Micros) -> QuotaRefusal | None:
    filling = made[-allowance.rate] if allowance.rate is not None and len(made) >= allowance.rate else None
    return quotas.judge(allowance, now, filling, len(made), made[0] + memory if made else None)
