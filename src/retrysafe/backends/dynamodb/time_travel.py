"""Lets time pass in DynamoDB, for tests."""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.backends.documents import Write, version_of
from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.time_travel import Aged, age_documents, asks_of
from retrysafe.protocol.records import EffectiveState, Micros
from retrysafe.protocol.requests import Ask, Program, ask, nothing


def age(store: DynamodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Age records; those forgotten by then are deleted, as the service's time to live does some day."""
    yield from age_documents(store, keys, micros)
    for key in keys:
        yield from asks_of(_delete_forgotten(store, key))


def _delete_forgotten(store: DynamodbStore, key: bytes) -> Program[None]:
    seen = yield from ask(store.read(key))
    if seen is not None and seen.effective_state is EffectiveState.FORGOTTEN:
        yield from ask(Ask(store.render(Write(key, version_of(seen), frozenset(), None)), nothing))
