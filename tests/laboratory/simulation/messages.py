"""Messages: what actors send, named so that the judge and the log can tell what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from retrysafe.protocol.records import (
    Cached,
    ClaimRequest,
    Clocks,
    Micros,
    Ownership,
    QuotaRefusal,
    Record,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.store import Cache, Capabilities, OperableStore
from retrysafe.protocol.transitions import Transition


class Message(NamedTuple):
    """One request on its way: what it is, the key, whom it names, and the request itself.

    ``version`` is that of the code that sends it, ``arguments`` are those of the store's method.
    """

    kind: str
    key: bytes
    named: Any
    event: Transition | None
    request: Any
    version: int = 1
    arguments: tuple[Any, ...] = ()


class WatchedStore:
    """A store whose requests say what they are, in the hands of one version of the code."""

    def __init__(self, store: OperableStore, version: int) -> None:
        self._store = store
        self._version = version

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def admit(self, request: ClaimRequest) -> Program[QuotaRefusal | None]:
        return self._store.admit(request)

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        return self._message("claim", request.key, request, Transition.CLAIM, self._store.claim(request), request)

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        return self._message(
            "take", request.key, seen, Transition.CLAIM, self._store.take(request, seen), request, seen
        )

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        request = self._store.settle(ownership, event, result)
        return self._message("settle", ownership.key, ownership, event, request, ownership, event, result)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        request = self._store.resolve(seen, event, result, clocks)
        return self._message("resolve", seen.key, seen, event, request, seen, event, result, clocks)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        (one,) = ownerships
        return [
            self._message("renew", one.key, one, Transition.RENEW, asked, one) for asked in self._store.renew([one])
        ]

    def read(self, key: bytes) -> Ask[Record | None]:
        return self._message("read", key, None, None, self._store.read(key), key)

    def sweep(self, limit: int) -> list[Ask[int]]:
        return [self._message("sweep", b"", None, Transition.SWEEP, request) for request in self._store.sweep(limit)]

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        return [self._message("forgotten", b"", None, None, request) for request in self._store.forgotten(limit)]

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        return [self._message("remove", b"", seen, Transition.SWEEP, request) for request in self._store.remove(seen)]

    def _message(
        self, kind: str, key: bytes, named: Any, event: Transition | None, request: Ask[Any], *arguments: Any
    ) -> Ask[Any]:
        return Ask(Message(kind, key, named, event, request.request, self._version, arguments), request.parse)


class WatchedCache:
    """A cache whose requests say what they are."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def look(self, key: bytes) -> Ask[Cached]:
        return self._message("look", key, None, self._cache.look(key))

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        return self._message("keep", record.key, record, self._cache.keep(record, until))

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        return self._message("drop", changed.key, changed, self._cache.drop(changed, until))

    @staticmethod
    def _message(kind: str, key: bytes, named: Any, request: Ask[Any]) -> Ask[Any]:
        return Ask(Message(kind, key, named, None, request.request), request.parse)
