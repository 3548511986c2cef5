"""MongoDB: each change is one update whose filter is its condition and whose instants are the server's.

Instants are whole microseconds as 64-bit integers; a date of BSON has milliseconds, and so has the server's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any

from retrysafe.backends.counted_keys import LARGEST_QUOTA, QUOTAS, KeyCountingStore
from retrysafe.backends.documents import FIELDS, KEY, Document, Later, ScanPage, Selection, Write
from retrysafe.backends.mongodb.requests import CHANGE, HELLO, Call, Control
from retrysafe.backends.service_clock import OwnClock
from retrysafe.errors import ConfigurationError, SchemaOutdated
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import EffectiveState, Finding, Micros
from retrysafe.protocol.requests import Ask, Program, ask, nothing
from retrysafe.protocol.standing import SETTLED, STANDING, Standing
from retrysafe.protocol.store import Capabilities

LARGEST_DOCUMENT = 16 * 1024 * 1024
RESERVED = 64 * 1024
"""Bytes of a document that are kept free for everything but its result."""
TTL = "purge_at"
"""The date after which the server removes a settled record."""
NOW = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
_LOOKED_AT = 1000
"""The documents that one page of a scan looks at."""


def _control(step: str) -> Callable[[MongodbStore], Ask[None]]:
    return lambda store: Ask(Control(step), nothing)


class MongodbStore(KeyCountingStore):
    """Records as documents of one collection; ``_id`` is the key's hash."""

    capabilities = Capabilities(
        name="mongodb",
        transactions=True,
        waits_in_transaction=False,
        clock="the primary's",
        durability="every acknowledged write, in the journals of a majority of the replica set",
        failover="nothing: a write is acknowledged by a majority",
        cannot_survive=(
            "the loss of a majority of the replica set's disks, or of the disk of a server without a replica set",
            "a backup that is restored: records since then are gone, and what they guarded may run again",
            "a new primary whose clock is ahead by a lease: attempts are taken over early; their holders are fenced",
        ),
        choose_when="when your data is in MongoDB",
        largest_result=LARGEST_DOCUMENT - RESERVED,
        stand_in="SecantusDB",
        quotas=QUOTAS,
        largest_quota=LARGEST_QUOTA,
    )

    def __init__(self, name: str, address: str) -> None:
        super().__init__(OwnClock(), address)
        self._name = name

    # ------------------------------------------------------------ documents

    def apart(self, request: Call) -> Call:
        return request._replace(joins=False)

    def fill_in(self, write: Write) -> Write:
        """The write as it is: the server knows the time."""
        return write

    def render(self, write: Write) -> Call:
        """An update by a pipeline, a deletion, or the claim of a key without a record."""
        if write.required is None:
            return self._claim(write)
        condition = {"_id": write.key, **write.required, **_any_of(write.allowed, write.judged_at)}
        if write.sets is None:
            return Call("collection.delete_one", (condition,))
        update = _update(write)
        if write.is_whole:
            return Call(CHANGE, (condition, update), {"return_document": True})
        return Call("collection.update_one", (condition, update))

    def _claim(self, write: Write) -> Call:
        """An upsert that changes no record that is there: one of its own attempt is given the time, to tell it.

        Another's is read with the time. So is one that the upsert could not read, having met the upsert that wrote it.
        """
        sets = write.sets or {}
        attempt, find = sets["attempt"], self.find(write.key)
        first = {"_id": {"$literal": write.key}, **{name: _value(value) for name, value in sets.items()}}
        again = {"$mergeObjects": ["$$ROOT", {"now": NOW}]}
        kept = {"$cond": [{"$eq": ["$attempt", {"$literal": attempt}]}, again, "$$ROOT"]}
        pipeline = [{"$replaceWith": {"$cond": [{"$eq": [{"$type": "$state"}, "missing"]}, first, kept]}}]
        upsert = Call(CHANGE, ({"_id": write.key}, pipeline), {"upsert": True, "return_document": True})
        return upsert._replace(follow=lambda found: None if found and found["attempt"] == attempt else find)

    def find(self, key: bytes) -> Call:
        return Call("collection.aggregate", ([{"$match": {"_id": key}}, {"$set": {"now": NOW}}],))

    def select(self, selection: Selection) -> Call:
        """A page in the order of keys: which of the next documents are wanted, and which is the last of them."""
        wanted: list[dict[str, Any]] = [dict(selection.equal)]
        standing = _any_of(selection.standing, None)
        if selection.lasting:
            forever = {"state": {"$in": [state.value for state in SETTLED.states]}, TTL: {"$exists": False}}
            standing = {"$or": [standing, forever]}
        wanted.append(standing)
        pipeline = [
            {"$match": {} if selection.start is None else {"_id": {"$gt": selection.start}}},
            {"$sort": {"_id": 1}},
            {"$limit": max(selection.limit or 0, _LOOKED_AT)},
            {"$project": {**dict.fromkeys(FIELDS, 1), TTL: 1}},
            {"$set": {"now": NOW}},
            {
                "$facet": {
                    "found": [{"$match": {"$and": wanted}}],
                    "looked_at": [{"$group": {"_id": None, "last": {"$max": "$_id"}, "count": {"$sum": 1}}}],
                }
            },
        ]
        return Call("collection.aggregate", (pipeline,))

    def is_done(self, answer: Any) -> bool:
        """True if a document was written: it is the answer, or their number."""
        return bool(answer)

    def document(self, answer: Any) -> Document | None:
        found: Any = answer[0] if isinstance(answer, list) and answer else answer
        return _document(found) if found else None

    def document_after(self, answer: Any, write: Write) -> Document:
        """The document in the answer; one that was just written has the time of that."""
        found = self.document(answer) or {}
        return {**found, "now": max(found["updated"], found.get("now", 0))}

    def page(self, answer: Any) -> ScanPage:
        """The documents of a page, and the last that was looked at, unless there are no more."""
        (page,) = answer
        looked_at = page["looked_at"]
        more = bool(looked_at) and looked_at[0]["count"] >= _LOOKED_AT
        return ScanPage(map(_document, page["found"]), bytes(looked_at[0]["last"]) if more else None)

    # ------------------------------------------------------------ transactions

    begin = _control("begin")
    savepoint = _control("savepoint")
    rollback_to_savepoint = _control("rollback_to_savepoint")
    commit = _control("commit")
    rollback = _control("rollback")

    def isolation(self) -> list[Ask[str]]:
        return []

    def whereabouts(self) -> Ask[object]:
        """The replica set; None where there is none to tell servers apart by."""
        return Ask(HELLO, lambda told: (told["setName"], *sorted(told["hosts"])) if "setName" in told else None)

    def time(self) -> Ask[Micros]:
        return Ask(HELLO, lambda told: round(told["localTime"].replace(tzinfo=UTC).timestamp() * 1e6))

    # ------------------------------------------------------------ the collection

    def examine(self) -> list[Ask[list[Finding]]]:
        """Is the server able, the collection there, and does it forget?"""
        return [Ask(HELLO, _server_findings), Ask(_INDEXES, self._index_findings)]

    def _index_findings(self, indexes: list[dict[str, Any]]) -> list[Finding]:
        if not indexes:
            raise SchemaOutdated(f"There is no MongoDB collection {self._name}. {self._migrate}")
        if _seconds(indexes) == 0:
            return [Finding("fact", "time to live", "on")]
        text = f"{self._name} has no TTL index on {TTL!r} that expires after 0 seconds: records are never removed."
        return [Finding("warn", "time to live", f"{text} Run retrysafe migrate.")]

    def create(self) -> Program[list[Migration]]:
        indexes = yield from ask(Ask(_INDEXES, list))
        after = _seconds(indexes)
        if after == 0:
            return []
        if any(TTL in index["key"] for index in indexes):
            raise ConfigurationError(
                f"store=: {self._name} has an index on {TTL!r} that expires after {after} seconds, and 0 are needed. "
                "Drop that index, then migrate again."
            )
        yield from ask(Ask(Call("collection.create_index", (TTL,), {"expireAfterSeconds": 0}, joins=False), nothing))
        return [Migration(1, f"collection {self._name} with its TTL index", ())]


_INDEXES = Call("collection.list_indexes", joins=False)


def _seconds(indexes: Iterable[dict[str, Any]]) -> Any:
    return next((index.get("expireAfterSeconds") for index in indexes if list(index["key"]) == [TTL]), None)


def _server_findings(told: dict[str, Any]) -> list[Finding]:
    if "setName" in told or told.get("msg") == "isdbgrid":
        return [Finding("fact", "replica set", str(told.get("setName", "behind mongos")))]
    text = "The server is no replica set: it has no transactions, and what its disk loses is lost."
    return [Finding("warn", "replica set", text)]


def _update(write: Write) -> list[dict[str, Any]]:
    """The stages of an update: all of its values are of the document before it."""
    sets = {name: _value(value) for name, value in (write.sets or {}).items()}
    if write.raises:
        sets["version"] = {"$add": ["$version", 1]}
    removes = list(write.removes)
    if write.settled:  # rounded up, so that no record goes before its time
        sets[TTL] = {"$toDate": {"$add": [{"$toLong": {"$divide": [sets["tombstone_until"], 1000]}}, 1]}}
    else:
        removes.append(TTL)
    return [{"$set": sets}, *([{"$unset": removes}] if removes else [])]


def _value(value: Any) -> Any:
    if not isinstance(value, Later):
        return {"$literal": value}
    instant = {"$add": [NOW, value.after]} if value.after else NOW
    return {"$max": [instant, value.least]} if value.least else instant


def _any_of(standings: Iterable[EffectiveState], at: Micros | None) -> dict[str, Any]:
    """A filter for documents that stand in one of these ways at a time, which None leaves to the server."""
    conditions = [_standing(STANDING[one], at) for one in sorted(standings)]
    return {"$or": conditions} if conditions else {}


def _standing(standing: Standing, at: Micros | None) -> dict[str, Any]:
    compared = [("$lte", name) for name in standing.over] + [("$gt", name) for name in standing.ahead]
    condition: dict[str, Any] = {"state": {"$in": [state.value for state in standing.states]}}
    if at is not None:
        return {**condition, **{name: {sign: at} for sign, name in compared}}
    return {**condition, "$expr": {"$and": [{sign: [f"${name}", NOW]} for sign, name in compared]}}


def _document(found: Document) -> Document:
    """The fields as plain values: a 64-bit integer of BSON has a type of its own."""
    plain = {name: int(value) if isinstance(value, int) else value for name, value in found.items()}
    return {KEY: plain.pop("_id"), **plain}
