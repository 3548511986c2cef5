"""A replication slot: how far one reader of PostgreSQL's log is, and the log that is kept for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

from retrysafe import lazy
from retrysafe.backends.sql.outbox import TABLE
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.relay.listener import CONNECT, address
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration

SLOT = TABLE
"""The default name of slot and publication."""
PLUGIN = "pgoutput"
_OURS = "slot_name = %s AND database = current_database() AND plugin = 'pgoutput'"
_DROP = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {_OURS}"
_PUBLISHES = (
    "SELECT p.pubinsert AND EXISTS (SELECT 1 FROM pg_publication_tables AS t WHERE t.pubname = p.pubname AND "
    f"to_regclass(format('%%I.%%I', t.schemaname, t.tablename)) = to_regclass('{TABLE}')) "
    "FROM pg_publication AS p WHERE p.pubname = %s"
)
"""Asks whether a publication has the new rows of the outbox; no row: there is none."""
_STANDS = """SELECT active, wal_status, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0),
coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0) FROM pg_replication_slots WHERE slot_name = %s"""
_PATIENCE = "5s"
"""The time for which a slot may take to be made: PostgreSQL waits for the end of all transactions that write."""


class LogUnavailable(RetrysafeError):
    """The log cannot be read now: the relay asks the table meanwhile."""


class SlotInUse(LogUnavailable):
    """Another relay reads from the slot."""


class SlotStatus(NamedTuple):
    """The state of a slot.

    exists: whether there is one.
    active: whether a relay reads from it.
    state: PostgreSQL's ``wal_status``: "reserved" and "extended" are well, "unreserved" is about to become "lost",
        and what is lost cannot be read from any more.
    lag_bytes: of the log, behind what was read and is confirmed.
    lag_seconds: since the oldest message was written that is still in the outbox.
    kept_bytes: of the log, which are on the disk for the slot.
    limit_bytes: how many these may become (``max_slot_wal_keep_size``); None: the disk may be filled.
    """

    exists: bool
    active: bool
    state: str
    lag_bytes: int
    lag_seconds: float
    kept_bytes: int
    limit_bytes: int | None

    @property
    def problems(self) -> list[str]:
        """Problems that a person should look after."""
        found = []
        if not self.exists:
            return ["the slot does not exist: a relay with cdc= makes it, or retrysafe cdc create"]
        if not self.active:
            found.append("no relay reads from the slot, and the log is kept for it: start one, or retrysafe cdc drop")
        if self.state in ("unreserved", "lost"):
            found.append(f"the slot is {self.state}: a relay makes it anew, and reads the table meanwhile")
        if self.limit_bytes is None:
            found.append("max_slot_wal_keep_size is not set: a slot that nobody reads from fills the disk")
        return found


class SlotLag(NamedTuple):
    """Bytes of the log: those behind what is confirmed, and those that are on the disk for the slot."""

    behind: int
    kept: int


class Slot:
    """A replication slot of PostgreSQL from which a relay reads the outbox: ``Relay(store, publisher, cdc=Slot(url))``.

    Arguments:
        url: of the PostgreSQL server with the outbox, not of a pooler; its user has the attribute REPLICATION, and owns
            the outbox or finds the publication made. Needs psycopg.
        name: of the slot, lower-case letters, digits and underscores. Slots belong to the whole server: take another
            name for each database.
        publication: the name of the publication of the outbox's new rows.
        heartbeat: how often the server is told how far the relay is, while there is nothing to publish too, so that it
            keeps no log for an idle database; a server that says nothing six times as long is taken for gone.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = SLOT,
        publication: str = SLOT,
        heartbeat: Duration = "10s",
    ) -> None:
        if not name or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") or len(name) > 63:
            raise ConfigurationError("name= of a slot has 1 to 63 lower-case letters, digits and underscores.")
        if not publication or set(publication) & set("'\"\0") or len(publication.encode()) > 63:
            raise ConfigurationError("publication= is a name of 1 to 63 bytes, without quotes.")
        self.url = address(url) or ""
        self.name, self.publication = name, publication
        self.heartbeat = seconds_of(heartbeat, "heartbeat")

    # ------------------------------------------------------------ for operators

    def create(self) -> str:
        """Make publication and slot, unless they are there; return why the slot was made: "missing", "lost" or "".

        Raises `ConfigurationError` for a server whose ``wal_level`` is not logical, and when the slot is of another
        database, or the publication of another table.
        """
        with self._connect() as connection:
            self._check(connection)
            # The publication comes first: the plugin looks for it in the catalogue of each moment of the log.
            if _first(connection, _PUBLISHES, self.publication) is None:
                table = f"FOR TABLE {TABLE} WITH (publish = 'insert')"
                connection.execute(f'CREATE PUBLICATION "{self.publication}" {table}')
            state = _first(connection, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", self.name)
            if state and state[0] != "lost":
                return ""
            connection.execute(_DROP, (self.name,))
            connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (self.name, PLUGIN))
            return "lost" if state else "missing"

    def drop(self) -> bool:
        """Remove slot and publication, as after the last relay that read the log; whether there was a slot.

        Raises `SlotInUse` while a relay reads from it, and `ConfigurationError` when it is of another database.
        """
        with self._connect() as connection:
            self._refuse_others(connection)
            try:
                dropped = connection.execute(_DROP, (self.name,)).fetchall()
            except lazy.psycopg.errors.ObjectInUse as error:
                raise SlotInUse(f"A relay reads from slot {self.name!r}: stop it first.") from error
            connection.execute(f'DROP PUBLICATION IF EXISTS "{self.publication}"')
        return bool(dropped)

    def status(self) -> SlotStatus:
        """Return the state of the slot. Raises `ConfigurationError` when it is of another database."""
        with self._connect() as connection:
            self._refuse_others(connection)
            unit = "SELECT setting::bigint << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
            limit = _first(connection, unit)[0]
            oldest = f"SELECT coalesce(extract(epoch FROM clock_timestamp()) - min(created) / 1e6, 0) FROM {TABLE}"
            waits = max(float(_first(connection, oldest)[0]), 0.0)
            found = _first(connection, _STANDS, self.name)
        active, state, lag, kept = found or (False, "", 0, 0)
        bound = None if limit < 0 else int(limit)
        return SlotStatus(bool(found), bool(active), state or "", int(lag), waits, int(kept), bound)

    # ------------------------------------------------------------ for relays

    def lag(self) -> SlotLag:
        """Return the lag of the log. Raises `LogUnavailable`, also without a slot."""
        with self._connect() as connection:
            found = _first(connection, _STANDS, self.name)
        if found is None:
            raise LogUnavailable(f"There is no slot {self.name!r}.")
        return SlotLag(int(found[2]), int(found[3]))

    def check(self) -> None:
        """Raise `ConfigurationError` as `create` does, unless the server is away."""
        with suppress(LogUnavailable), self._connect() as connection:
            self._check(connection)

    def discard(self) -> None:
        """Remove a slot that cannot be read from any more, unless a relay reads from it."""
        with suppress(LogUnavailable), self._connect() as connection:
            connection.execute(_DROP, (self.name,))

    def _check(self, connection: Any) -> None:
        (level,) = connection.execute("SHOW wal_level").fetchone()
        if level != "logical":
            raise ConfigurationError(
                f"cdc= needs wal_level = logical, and the server has {level!r}: "
                "ALTER SYSTEM SET wal_level = 'logical', and restart it. Nothing was published."
            )
        self._refuse_others(connection)
        if _first(connection, _PUBLISHES, self.publication) == (False,):
            raise ConfigurationError(
                f"Publication {self.publication!r} is there, and does not have the new rows of this {TABLE}: give this "
                "outbox's another name, with publication= or --publication."
            )

    def _refuse_others(self, connection: Any) -> None:
        """Raise `ConfigurationError` for a slot that is not of this database."""
        others = f"SELECT coalesce(database, ''), plugin FROM pg_replication_slots WHERE slot_name = %s AND ({_OURS}) "
        if found := _first(connection, f"{others} IS NOT TRUE", self.name, self.name):
            raise ConfigurationError(
                f"Slot {self.name!r} is of database {found[0]!r} and plugin {found[1]!r}. Slots belong to the whole "
                "server: give this outbox's another name, with name= or --slot."
            )

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """A connection of psycopg, whose errors become `LogUnavailable`."""
        patience: dict[str, Any] = {
            "connect_timeout": CONNECT,
            "tcp_user_timeout": CONNECT * 1000,
            "keepalives_idle": CONNECT,
        }
        try:
            with closing(lazy.psycopg.connect(self.url, autocommit=True, **patience)) as connection:
                connection.execute(f"SET statement_timeout = '{_PATIENCE}'")
                yield connection
        except lazy.psycopg.Error as error:
            raise LogUnavailable(f"The log cannot be read: {error}") from error


def _first(connection: Any, sql: str, *values: str) -> Any:
    return connection.execute(sql, values).fetchone()
