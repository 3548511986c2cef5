"""Values stored by another version, or altered: a typed error, and the work is not run again. FAULTS 71, 72."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import Boundary, KeyReused, ResultUnreadable, RetrysafeError, StoreMisconfigured
from retrysafe.backends.redis import packing
from retrysafe.backends.redis.store import name_of
from retrysafe.protocol.fingerprint import MARKED
from retrysafe.protocol.records import State
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import plain, run_sql
from tests.stores.ageing import dynamodb_client, redis_masters
from tests.stores.harnesses.dynamodb import DYNAMODB_TABLE, dynamodb_endpoint

pytestmark = [pytest.mark.fault(72)]

KINDS = ["sqlite", "psycopg", "pymysql", "redis", "dynamodb"]
Change = Callable[[str, Any], None]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> str:
    """Every store whose records others can write to."""
    kind = request.param
    url: str = request.getfixturevalue("sqlite_url") if kind == "sqlite" else server_of(kind, request)
    return url


def _changing(store: str, key: bytes) -> Change:
    """Writes one field of a record behind the store's back."""

    def on_sql(name: str, value: Any) -> None:
        literal = f"x'{value.hex()}'" if isinstance(value, bytes) else f"'{value}'"
        digest = f"x'{key.hex()}'"
        if store.startswith("postgresql"):
            literal, digest = literal.replace("x'", "'\\x"), digest.replace("x'", "'\\x")
        assert run_sql(plain(store), f"UPDATE retrysafe_records SET {name} = {literal} WHERE key_hash = {digest}") == 1

    def on_redis(name: str, value: Any) -> None:
        node = redis_masters(store).of_key(name_of(key))
        packed: Any = node.get(name_of(key))
        node.set(name_of(key), _repacked(key, packed, name, value), keepttl=True)

    def on_dynamodb(name: str, value: Any) -> None:
        kinds = {bytes: "B", int: "N", str: "S"}
        dynamodb_client(dynamodb_endpoint()).update_item(
            TableName=DYNAMODB_TABLE,
            Key={"key_hash": {"B": key}},
            UpdateExpression="SET #name = :value",
            ExpressionAttributeNames={"#name": name},
            ExpressionAttributeValues={
                ":value": {kinds[type(value)]: value if isinstance(value, bytes) else str(value)}
            },
        )

    return {"redis": on_redis, "dynamodb": on_dynamodb}.get(store.partition(":")[0], on_sql)


def _repacked(key: bytes, packed: bytes, name: str, value: Any) -> bytes:
    """A record of Redis with another value."""
    head = list(packing._HEAD.unpack_from(packed))
    if name == "state":
        head[1] = packing.number_of(State(value)) if value in set(State) else _LATER_STATE
        return packing._HEAD.pack(*head) + packed[packing._HEAD.size :]
    record = packing.unpack(key, packed, 0)
    if name == "fingerprint":
        record = record._replace(fingerprint=value)
    else:
        assert record.result is not None
        record = record._replace(result=record.result._replace(**{{"result": "body"}.get(name, name): value}))
    claimed: Any = SimpleNamespace(**record._asdict(), recorded="")
    claim = packing.claim_part(claimed)
    return packing._HEAD.pack(*head[:-1], len(claim)) + claim + packing.result_part(record.result)


_LATER_STATE = 9
"""A state of a later version in Redis: a number that this one has no name for."""


def _refused(boundary: Boundary, error: type[RetrysafeError], text: str) -> None:
    for _ in range(2):
        with pytest.raises(error, match=text) as caught, boundary.claim("key", payload="p"):
            pytest.fail("it was run again")
        assert caught.value.effect_happened != "no"


def _settled(boundary: Boundary) -> bytes:
    with boundary.claim("key", payload="p") as claim:
        claim.result = "done"
    return claim._require_request().key


def test_a_result_of_a_later_codec(store: str, make: Making) -> None:
    boundary = make(store)
    change = _changing(store, _settled(boundary))
    change("codec_version", 2)
    _refused(boundary, ResultUnreadable, "version 2; this codec reads .* version 1")
    change("codec_version", 1)
    with boundary.claim("key", payload="p") as claim:
        assert (claim.replayed, claim.result) == (True, "done"), "who can read it is answered"


def test_a_failure_of_a_later_codec(store: str, make: Making) -> None:
    boundary = make(store, permanent=ValueError)
    with pytest.raises(ValueError, match="no"), boundary.claim("key", payload="p") as claim:
        raise ValueError("no")
    _changing(store, claim._require_request().key)("codec_version", 2)
    _refused(boundary, ResultUnreadable, "version 2")


@pytest.mark.fault(71)
def test_a_pickle_is_never_loaded(store: str, make: Making) -> None:
    boundary = make(store)
    change = _changing(store, _settled(boundary))
    change("result", pickle.dumps(_Bomb()))
    _refused(boundary, ResultUnreadable, "does not fit")
    change("media_type", "application/x-pickle")
    _refused(boundary, ResultUnreadable, "application/x-pickle")
    change("media_type", "application/vnd.retrysafe+json")
    change("result", json.dumps({"$": ["object", "os._exit", {"status": 3}]}).encode())
    _refused(boundary, ResultUnreadable, "os._exit")


class _Bomb:
    """Goes off when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _goes_off, ()


def _goes_off() -> None:
    raise AssertionError("a stored pickle was loaded")


def test_a_fingerprint_of_a_later_version_is_another_payload(store: str, make: Making) -> None:
    """It cannot be compared, so it does not agree."""
    boundary = make(store)
    _changing(store, _settled(boundary))("fingerprint", bytes((MARKED + 1,)) + b"of tomorrow")
    with pytest.raises(KeyReused, match="payload"), boundary.claim("key", payload="p"):
        pytest.fail("it was run again")


@pytest.mark.parametrize("store", ["sqlite", "redis", "dynamodb"], indirect=True)
def test_a_state_of_a_later_version(store: str, make: Making) -> None:
    """SQL servers refuse to write it; nothing of ours would be there to take that constraint away."""
    boundary = make(store)
    key = _settled(boundary)
    if store.startswith("sqlite"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as file, file:
            file.execute("PRAGMA ignore_check_constraints = ON")
            file.execute("UPDATE retrysafe_records SET state = 'archived'")
    else:
        _changing(store, key)("state", "archived")
    try:
        state = _LATER_STATE if store.startswith("redis") else "archived"
        _refused(boundary, StoreMisconfigured, f"Its record is '{state}', which only a newer retrysafe understands")
    finally:
        if not store.startswith("sqlite"):
            _changing(store, key)("state", "completed")  # the server is shared with tests that look through all of it


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_form_of_a_later_version(store: str, make: Making) -> None:
    """Nothing is written to it, whatever it says behind its first byte."""
    boundary = make(store)
    key = _settled(boundary)
    node = redis_masters(store).of_key(name_of(key))
    packed: Any = node.get(name_of(key))
    node.set(name_of(key), bytes((packing.FORMAT + 1,)) + packed[1:])
    try:
        _refused(boundary, StoreMisconfigured, "has the format 2, which only a newer retrysafe understands")
    finally:
        node.set(name_of(key), packed)
