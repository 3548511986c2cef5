"""Azure Cosmos DB: a record is an item of its own logical partition, and every change a patch with a predicate.

An item has its record in one field, so that a single operation replaces it. The service has no clock to compare with,
so instants come from a clock that is handed in.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from retrysafe.backends.cosmos.requests import CONFLICT, MISSING, UNMET, ItemAnswer, ItemCall, patch
from retrysafe.backends.documents import FIELDS, KEY, Document, DocumentStore, ScanPage, Selection, Write
from retrysafe.backends.service_clock import Clock, finding_of
from retrysafe.errors import SchemaOutdated
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import Finding, Micros
from retrysafe.protocol.requests import Ask, Program, ask, nothing
from retrysafe.protocol.standing import SETTLED, STANDING, Standing
from retrysafe.protocol.store import Capabilities

MARGIN: Micros = 2_000_000
LARGEST_ITEM = 2 * 1024 * 1024
RESERVED = 64 * 1024
"""Bytes of an item that are kept free for everything but its result."""
_FOREVER = -1
_PAGE = 1000
_BYTES = ("fingerprint", "result")
_WEAK = ("ConsistentPrefix", "Eventual")
"""Levels of consistency below Session."""
_PARTITION_KEY = {"paths": ["/id"], "kind": "Hash", "version": 2}
_INDEXED = {"includedPaths": [{"path": "/*"}], "excludedPaths": [{"path": "/record/result/?"}, {"path": '/"_etag"/?'}]}
_FIELDS = ", ".join(f"c.record.{name}" for name in FIELDS)
_ACCOUNT = ItemCall("database.client_connection.GetDatabaseAccount")
_CONTAINER = ItemCall("container.read", expected=(MISSING,))


class CosmosStore(DocumentStore):
    """Records as items of one container with the partition key ``/id``, which is the key's hash."""

    capabilities = Capabilities(
        name="cosmos",
        transactions=False,
        waits_in_transaction=False,
        clock="the service's, as the Date of its answers tells it; others wait 2 s longer for a lease than its holder",
        durability="every acknowledged write, by a majority of a region's replicas; below Strong, reads may be older",
        failover="nothing within a region; below Strong consistency another region may not have the last writes",
        cannot_survive=(
            "a failover to a region without the last writes: what they guarded may run again",
            "a point-in-time restore: records since then are gone, and what they guarded may run again",
            "servers of the service with clocks over 2 s apart: a lease may be taken over early; its holder is fenced",
        ),
        choose_when="when you run on Azure without a database of your own to share a transaction with",
        largest_result=(LARGEST_ITEM - RESERVED) // 4 * 3,
        margin=MARGIN,
        stand_in="cosmosdb-server",
    )

    def __init__(self, clock: Clock, address: str, names: tuple[str, str]) -> None:
        super().__init__(clock, address)
        self._names = names
        self._name = "/".join(names)

    # ------------------------------------------------------------ documents

    def render(self, write: Write) -> ItemCall:
        """The creation of an item, which reads one that is in the way; or a patch, or a deletion behind one."""
        if write.required is None:
            item = {"id": write.key.hex(), "ttl": _FOREVER, "record": _wire(write.sets or {})}
            find = self.find(write.key)
            return ItemCall("container.create_item", (item,), {}, (CONFLICT,), lambda no: find if no.refused else None)
        condition = _predicate(write)
        if write.sets is None:  # only a patch has a predicate; it answers with the tag of the item that it leaves
            marking = patch(write.key, [_set("/ttl", 1)], condition)
            return marking._replace(follow=lambda done: None if done.refused else _delete(done.body))
        if write.is_whole:
            return patch(write.key, [_set("/record", _wire(write.sets)), _set("/ttl", _FOREVER)], condition)
        changed = _wire({**write.sets, **dict.fromkeys(write.removes)})
        operations = [_set(f"/record/{name}", value) for name, value in changed.items()]
        if write.raises:
            operations.append({"op": "incr", "path": "/record/version", "value": 1})
        operations.append(_set("/ttl", self._seconds(write.sets["tombstone_until"]) if write.settled else _FOREVER))
        return patch(write.key, operations, condition)

    def find(self, key: bytes) -> ItemCall:
        return ItemCall("container.read_item", (key.hex(), key.hex()), expected=(MISSING,))

    def select(self, selection: Selection) -> ItemCall:
        """A page in the order of keys; the instants are parameters, so that the text of a query stays the same."""
        wanted = ["c.id > @start", *(f"c.record.{name} = @{name}" for name in selection.equal)]
        ways = [_standing(STANDING[one], "@now") for one in sorted(selection.standing)]
        if selection.lasting:
            ways.append(f"{_standing(SETTLED, '@now')} and c.ttl = {_FOREVER}")
        if ways:
            wanted.append(f"({' or '.join(ways)})")
        top = f"select top {selection.limit or _PAGE} c.id, {_FIELDS}"
        query = f"{top} from c where {' and '.join(wanted)} order by c.id"
        given = {**selection.equal, "start": (selection.start or b"").hex(), "now": self.clock()}
        parameters = [{"name": f"@{name}", "value": value} for name, value in given.items()]
        return ItemCall("container.query_items", (query,), {"parameters": parameters})

    def is_done(self, answer: ItemAnswer) -> bool:
        return answer.refused is None

    def document(self, answer: ItemAnswer) -> Document | None:
        return _document(answer.body["id"], answer.body["record"]) if answer.body else None

    def page(self, answer: ItemAnswer) -> ScanPage:
        documents = [_document(row.pop("id"), row) for row in answer.body]
        return ScanPage(documents, documents[-1][KEY] if documents else None)

    def _seconds(self, until: Micros) -> int:
        """The time to live of an item that is written now: it begins at the service's time, in whole seconds."""
        return min(max(until - self.clock(), 0) // 1_000_000 + 2, 2**31 - 1)

    # ------------------------------------------------------------ the container

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the account's regions and consistency, at the container, and whether the service tells its time."""
        return [Ask(_ACCOUNT, _account_findings), Ask(_CONTAINER, self._container_findings)]

    def _container_findings(self, answer: ItemAnswer) -> list[Finding]:
        if answer.refused is not None:
            raise SchemaOutdated(f"There is no Cosmos DB container {self._name}. {self._migrate}")
        found = [finding_of(self.clock)]
        paths = answer.body["partitionKey"]["paths"]
        if paths != _PARTITION_KEY["paths"]:
            text = f"The container {self._name} has the partition key {', '.join(paths)}, and this store needs /id."
            found.append(Finding("refuse", "key", text))
        off = f"The time to live of {self._name} is off: records are never removed."
        forgets = answer.body.get("defaultTtl") is not None
        return [*found, Finding("fact", "ttl", "on") if forgets else Finding("warn", "ttl", off)]

    def create(self) -> Program[list[Migration]]:
        """Create the database and the container, which forgets; a container that is there stays as it is."""
        there = yield from ask(Ask(_CONTAINER, lambda answer: answer.body))
        if there is not None:
            return []
        database, container = self._names
        made = ItemCall("database.client_connection.CreateDatabase", ({"id": database},), expected=(CONFLICT,))
        yield from ask(Ask(made, nothing))
        options = {"partition_key": _PARTITION_KEY, "default_ttl": _FOREVER, "indexing_policy": _INDEXED}
        yield from ask(Ask(ItemCall("database.create_container", (container,), options), nothing))
        return [Migration(1, f"container {self._name} with its time to live", ())]


def _account_findings(answer: ItemAnswer) -> list[Finding]:
    account = answer.body
    level = account.ConsistencyPolicy["defaultConsistencyLevel"]
    weak = f"The account's default consistency is {level}: a process may not find what it has written itself."
    several = "The account writes in several regions: two of them can both win a claim, and both will act."
    found = [Finding("warn", "consistency", weak) if level in _WEAK else Finding("fact", "consistency", level)]
    return found + [Finding("refuse", "write-regions", several)] * account._EnableMultipleWritableLocations


def _set(path: str, value: Any) -> dict[str, Any]:
    return {"op": "set", "path": path, "value": value}


def _delete(item: Mapping[str, Any]) -> ItemCall:
    """A removal of an item that is unchanged since it was read."""
    return ItemCall("container.delete_item", (item["id"],) * 2, {"etag": item["_etag"]}, expected=(MISSING, UNMET))


def _predicate(write: Write) -> str:
    """The condition of a write, in disjunctive form; every value in it is a number or a text of ours."""
    required = [f"c.record.{name} = {json.dumps(value)}" for name, value in (write.required or {}).items()]
    ways = [[_standing(STANDING[one], str(write.judged_at))] for one in sorted(write.allowed)] or [[]]
    return "from c where " + " or ".join(" and ".join(required + way) for way in ways)


def _standing(standing: Standing, now: str) -> str:
    states = ", ".join(f"'{state.value}'" for state in standing.states)
    compared = [f"c.record.{name} <= {now}" for name in standing.over]
    compared += [f"c.record.{name} > {now}" for name in standing.ahead]
    return " and ".join([f"c.record.state in ({states})", *compared])


def _wire(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in fields.items()}


def _document(key: str, fields: Mapping[str, Any]) -> Document:
    """The fields as Python's values: JSON has one kind of number, and no bytes."""
    values = {name: int(value) if isinstance(value, float) else value for name, value in fields.items()}
    values |= {name: b64decode(fields[name]) for name in _BYTES if fields.get(name) is not None}
    return {KEY: bytes.fromhex(key), **{name: value for name, value in values.items() if value is not None}}
