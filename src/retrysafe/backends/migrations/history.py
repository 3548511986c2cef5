"""The schema's history: each version's changes, described once for every dialect, for Alembic and for Django.

A version that is released stays as it is. A new one is its changes in `HISTORY`, a module of its number and name in
``retrysafe/django/migrations`` with the model of a new table, and the digests of its tables in ``tests/stores``.

A table's columns are written as their names and kinds, with ``?`` where they may be NULL. Instants are microseconds
since the Unix epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Column(NamedTuple):
    """One column; each dialect has a type for its kind."""

    name: str
    kind: str
    null: bool


class Index(NamedTuple):
    """An index; ``where`` is the condition of a partial one.

    ``whole``: its columns in a dialect without partial indexes, where they are others; empty if it has no such index.
    """

    name: str
    table: str
    columns: str
    where: str = ""
    whole: str | None = None

    def create(self, how: str) -> str:
        """The statement that makes it, which begins with ``how``."""
        return f"{how} {self.name} ON {self.table} ({self.columns}){self.where and f' WHERE {self.where}'}"

    def without_condition(self) -> Index | None:
        """The index in a dialect without partial indexes."""
        columns = self.columns if self.whole is None else self.whole
        return self._replace(columns=columns, where="") if columns else None


class Table(NamedTuple):
    """A new table.

    key: how many columns, from the first on, are its primary key.
    options: words behind its columns, by dialect.
    only: the dialect that alone has it.
    numbers: how many rows it has from the beginning: their keys are the numbers from 0 on.
    """

    name: str
    described: str
    indexes: tuple[Index, ...] = ()
    options: Mapping[str, str] = MappingProxyType({})
    only: str | None = None
    numbers: int = 0
    key: int = 1

    @property
    def columns(self) -> list[Column]:
        words = (one.split() for one in self.described.split(", "))
        return [Column(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in words]


class AddColumn(NamedTuple):
    """A new column of a table that is there."""

    table: str
    described: str


class RenameTable(NamedTuple):
    """Another name for a table."""

    old: str
    new: str


class RenameColumn(NamedTuple):
    """Another name for a column."""

    table: str
    old: str
    new: str


class RenameIndex(NamedTuple):
    """Another name for an index; ``where``: its condition in a dialect that makes it anew."""

    table: str
    old: str
    new: str
    where: str | None = None


class Rewrite(NamedTuple):
    """A table that SQLite writes anew, and these of its indexes: with a rowid, and without IN in its checks.

    For IN with three values or more, in a CHECK or in the condition of an index, it builds a table of these values for
    every statement, and a table WITHOUT ROWID is slow where it is large.
    """

    table: str
    indexes: tuple[str, ...]


class Statements(NamedTuple):
    """Statements of one dialect, there and back, which change no names."""

    dialect: str
    up: tuple[str, ...]
    down: tuple[str, ...]


Change = Table | Index | AddColumn | RenameTable | RenameColumn | RenameIndex | Rewrite | Statements


class SchemaShape(NamedTuple):
    """The tables and indexes that there are, by their names."""

    tables: Mapping[str, Table]
    indexes: Mapping[str, Index]

    def after(self, change: Change) -> SchemaShape:
        """The shape with one more change."""
        tables, indexes = dict(self.tables), dict(self.indexes)
        match change:
            case Table(name, _, made):
                tables[name] = change
                indexes |= {index.name: index for index in made}
            case Index(name):
                indexes[name] = change
            case AddColumn(table, column):
                tables[table] = tables[table]._replace(described=f"{tables[table].described}, {column}")
            case RenameTable(old, new):
                tables = {new if name == old else name: one for name, one in tables.items()}
                tables[new] = tables[new]._replace(name=new)
                indexes |= {n: one._replace(table=new) for n, one in indexes.items() if one.table == old}
            case RenameColumn(table, old, new):
                described = re.sub(rf"\b{old} ", f"{new} ", tables[table].described)
                tables[table] = tables[table]._replace(described=described)
                for name, one in indexes.items():
                    if one.table == table:
                        columns, whole = (re.sub(rf"\b{old}\b", new, text or "") for text in (one.columns, one.whole))
                        indexes[name] = one._replace(columns=columns, whole=one.whole and whole)
            case RenameIndex(_, old, new, where):
                one = indexes.pop(old)
                indexes[new] = one._replace(name=new, where=one.where if where is None else where)
            case _:
                pass
        return SchemaShape(tables, indexes)


# ---------------------------------------------------------------- versions

_SETTLED = "state = 'completed' OR state = 'failed' OR state = 'released'"
_INNODB = {"mysql": " ENGINE = InnoDB"}
_RECORDS = (
    Table("retrysafe_schema", "version int, name name, applied stamp?", options=_INNODB),
    Table(
        "retrysafe_records",
        "key_hash hash, boundary text, scope text, operation text, fingerprint bytes, state state, attempt short, "
        "token big, attempts int, effects effects, lease_until big, created big, updated big, expires big, forget big, "
        "version big, result body?, media_type name?, codec_version int?, xact xact?",
        (
            Index(
                "retrysafe_records_forget",
                "retrysafe_records",
                "forget",
                "state IN ('completed', 'failed', 'released')",
                whole="state, forget",
            ),
        ),
        {"sqlite": " WITHOUT ROWID"},
    ),
    # Locked to the end of a transaction that claims, on MySQL; MariaDB needs no gate.
    Table("retrysafe_gates", "gate int", options=_INNODB, only="mysql", numbers=65536),
)
_QUOTAS = (
    # The holder of a key, where a quota counts the keys of a scope; other records are not in the index.
    AddColumn("retrysafe_records", "quota holder?"),
    Index("retrysafe_records_quota", "retrysafe_records", "quota, created", "quota IS NOT NULL"),
)
_MESSAGE = (
    "bucket small, lane big, message_id short, topic name, message_key name?, message_type name, source name, "
    "sequence big?, created big, headers text, payload body, media_type name"
)
_OUTBOX = (
    # Messages that leave when the transaction that wrote them has committed. A row is written once and never changed;
    # its id is taken when it is written, in order with what the same writer has locked.
    Table(
        "retrysafe_outbox",
        f"id serial, {_MESSAGE}",
        (Index("retrysafe_outbox_bucket", "retrysafe_outbox", "bucket, id"),),
        {"postgresql": " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)"},
    ),
    # One relay at a time holds a bucket: for a transaction, by the lock of its row.
    Table("retrysafe_outbox_buckets", "bucket small", numbers=64),
    # Messages that did not leave at once: attempts that were begun, and those that came to an end.
    Table(
        "retrysafe_outbox_troubles",
        "id big, bucket small, lane big, started int, finished int, not_before big, error text",
        (Index("retrysafe_outbox_troubles_bucket", "retrysafe_outbox_troubles", "bucket, lane"),),
    ),
    # Messages that were given up.
    Table("retrysafe_outbox_dead", f"id big, {_MESSAGE}, started int, finished int, error text, died big"),
    # Messages that have left, where they are kept.
    Table(
        "retrysafe_outbox_published",
        f"id big, {_MESSAGE}, published big",
        (Index("retrysafe_outbox_published_at", "retrysafe_outbox_published", "published"),),
    ),
    # Topics of which nothing leaves for the time being.
    Table("retrysafe_outbox_paused", "topic name, since big"),
    # Relays that say they are there, for those that look after the outbox.
    Table("retrysafe_outbox_relays", "name name, hold name, since big, seen big"),
)
_INBOX = (
    # Messages that could not be handled at once: attempts that were begun, and those that came to an end.
    Table(
        "retrysafe_inbox_troubles",
        "key_hash hash, consumer name, started int, finished int, error text, updated big",
        (Index("retrysafe_inbox_troubles_updated", "retrysafe_inbox_troubles", "updated"),),
    ),
    # Messages that were given up, until a person has them handled again (redrive: when that was asked).
    Table(
        "retrysafe_inbox_dead",
        "key_hash hash, record_key hash, boundary name, consumer name, message_id text, topic name, message_key text?, "
        "message_type text, source text, sequence big?, headers text, payload body, media_type name, started int, "
        "finished int, error text, died big, redrive big?",
        (Index("retrysafe_inbox_dead_redrive", "retrysafe_inbox_dead", "redrive", "redrive IS NOT NULL"),),
    ),
    # The last sequence that was applied to an entity, by each consumer that asks.
    Table(
        "retrysafe_inbox_sequences",
        "key_hash hash, boundary name, consumer name, entity name, sequence big, updated big",
        (Index("retrysafe_inbox_sequences_updated", "retrysafe_inbox_sequences", "updated"),),
    ),
)
_LANES = (
    # The messages of one lane, where a relay has passed over a part of their bucket; and lanes whose wait is over.
    Index("retrysafe_outbox_lane", "retrysafe_outbox", "bucket, lane, id"),
    Index("retrysafe_outbox_troubles_until", "retrysafe_outbox_troubles", "bucket, not_before"),
)


def _resize(kind: str) -> str:
    columns = (
        "message_id {0} NOT NULL, message_key {0}, message_type {0} NOT NULL, source {0} NOT NULL, headers {0} NOT NULL"
    )
    return f"ALTER TABLE retrysafe_inbox_dead MODIFY {columns.replace(', ', ', MODIFY ').format(kind)}"


_NAMES = (
    # The names of version 0.1 give way to the field's terms. Only SQLite writes rows anew.
    RenameColumn("retrysafe_records", "forget", "tombstone_until"),
    Rewrite("retrysafe_records", ("retrysafe_records_quota",)),
    RenameIndex("retrysafe_records", "retrysafe_records_forget", "retrysafe_records_tombstone", _SETTLED),
    RenameTable("retrysafe_outbox_troubles", "retrysafe_outbox_attempts"),
    RenameIndex("retrysafe_outbox_attempts", "retrysafe_outbox_troubles_bucket", "retrysafe_outbox_attempts_bucket"),
    RenameIndex("retrysafe_outbox_attempts", "retrysafe_outbox_troubles_until", "retrysafe_outbox_attempts_until"),
    RenameTable("retrysafe_inbox_troubles", "retrysafe_inbox_attempts"),
    RenameIndex("retrysafe_inbox_attempts", "retrysafe_inbox_troubles_updated", "retrysafe_inbox_attempts_updated"),
    RenameColumn("retrysafe_outbox_dead", "died", "dead_at"),
    RenameColumn("retrysafe_inbox_dead", "died", "dead_at"),
    RenameColumn("retrysafe_outbox_paused", "since", "paused_at"),
    RenameColumn("retrysafe_outbox_relays", "since", "started_at"),
    RenameColumn("retrysafe_outbox_relays", "seen", "last_seen_at"),
    # Brokers of others bring attributes of more than 64 KiB, which must not be undeliverable for ever.
    Statements("mysql", (_resize("MEDIUMTEXT"),), (_resize("TEXT"),)),
)
_UNKNOWN = (
    # Unknown records, the oldest first: an operator finds and counts them without a look at the others. They are few;
    # an index of all records would cost every write, so where there are no partial ones there is none.
    Index(
        "retrysafe_records_unknown",
        "retrysafe_records",
        "updated, key_hash, boundary, operation, scope",
        "state = 'unknown'",
        whole="",
    ),
    # Dead letters of consumers, the oldest first.
    Index("retrysafe_inbox_dead_at", "retrysafe_inbox_dead", "dead_at, key_hash"),
)
_STEPS = (
    # Steps inside a claim: what each has done, so that the next attempt goes on behind it.
    Table(
        "retrysafe_steps",
        "key_hash hash, generation big, name name, idx name, state short, token big, place int, undoable int, "
        "fingerprint bytes, updated big, kept_until big, result body?, media_type name?, codec_version int?",
        (Index("retrysafe_steps_kept_until", "retrysafe_steps", "kept_until"),),
        key=4,
    ),
)
_LOADS = (
    # The last load of each part of a table: its fence, its run, and how far its input goes. Written with its data.
    Table(
        "retrysafe_loads",
        "target name, part name, fence big, run name, counted big, version big?, high name?",
        key=2,
    ),
)
HISTORY: Mapping[str, tuple[Change, ...]] = {
    "records": _RECORDS,
    "quotas": _QUOTAS,
    "outbox": _OUTBOX,
    "inbox": _INBOX,
    "lanes": _LANES,
    "names": _NAMES,
    "unknown": _UNKNOWN,
    "steps": _STEPS,
    "loads": _LOADS,
}
"""The changes of each version by its name, in order from version 1."""


def steps() -> Iterator[tuple[int, Change, SchemaShape, SchemaShape]]:
    """Every change with its version, and the shapes before and after it."""
    shape = SchemaShape({}, {})
    for version, changes in enumerate(HISTORY.values(), 1):
        for change in changes:
            before, shape = shape, shape.after(change)
            yield version, change, before, shape


def present() -> SchemaShape:
    """The shape after all versions."""
    return [after for *_, after in steps()][-1]
