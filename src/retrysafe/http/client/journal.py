"""A durable journal of requests on SQLite: what is in it survives a crash of the client, key and body included.

A request is written, and on disk, before its first byte is sent; it leaves the journal when its caller has an
answer. What is left belongs to processes that died, or ended in doubt.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from retrysafe import runtime
from retrysafe.backends.sql.drivers.sqlite import SqliteFile
from retrysafe.backends.sql.drivers.sqlite_connection import Connection
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.http.client.errors import JournalUnavailable, RequestKeyReused
from retrysafe.http.client.headers import SECRETS
from retrysafe.http.client.hosts import address, hide_query
from retrysafe.http.client.owners import JournalOwner, is_alive
from retrysafe.protocol import keys

_MADE_ANEW = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive", "idempotency-key"})


class Entry(NamedTuple):
    """A request in the journal. Times are seconds since 1970."""

    id: bytes
    scope: str
    key: str
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    created: float
    recognised_until: float | None
    """Until when its host recognises the key; None if that host was not known to honour keys."""
    attempts: int = 0
    last: str = ""
    """The result of its last attempt, as far as a living process could record it."""
    owner: str = ""
    held_until: float = 0.0
    field: str = ""
    """The value of the header with the key, as it was sent: a server may take another form of it for another key."""
    runs: tuple[str, ...] = ()
    """The calls that are at it, in any process."""
    in_doubt: bool = False
    """True if one of the calls that were at it at once has ended in doubt."""

    @property
    def name(self) -> str:
        """The key as logs and commands show it: the first eight digits of a hash."""
        return keys.redact(self.id)

    def __repr__(self) -> str:
        return f"<Entry {self}>"

    def __str__(self) -> str:
        """Describe it for people: no key, no body, no query."""
        return f"{self.method} {hide_query(self.url)} (key {self.name})"


def identity(scope: str, url: str, key: str) -> bytes:
    """The hash under which a key of one host is known here: in the journal, in events and in logs."""
    return keys.lookup(None, "http.client", scope, address(url), key)


def select_headers(headers: Iterable[tuple[str, str]], secrets: Container[str]) -> tuple[tuple[str, str], ...]:
    """Select the headers of a request for the journal: no credentials, and none that a client makes by itself."""
    lowered = ((name.lower(), value) for name, value in headers)
    return tuple((name, value) for name, value in lowered if name not in secrets and name not in _MADE_ANEW)


T = TypeVar("T")

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id BLOB PRIMARY KEY, scope TEXT NOT NULL, key TEXT NOT NULL, method TEXT NOT NULL, url TEXT NOT NULL,
    headers TEXT NOT NULL, body BLOB NOT NULL, created REAL NOT NULL, recognised_until REAL,
    attempts INTEGER NOT NULL, last TEXT NOT NULL, owner TEXT NOT NULL, held_until REAL NOT NULL,
    field TEXT NOT NULL, runs TEXT NOT NULL, in_doubt INTEGER NOT NULL
)
"""
_COLUMNS = ", ".join(Entry._fields)


class Journal:
    """Requests that are under way, or ended in doubt, in a SQLite file; any number of processes may share it.

    Arguments:
        path: the file. It holds bodies and raw keys: it is for its owner's eyes only. One that others may read is taken
            from them, and one of another owner is refused.
        scope: whose requests these are. Give each tenant or account one of its own: what is resumed is sent with the
            credentials of the client that resumes it.
        secrets: names of further headers that hold credentials and are never written. Authorization, Cookie and
            Proxy-Authorization never are, nor is a header whose name says token, key, secret, session, signature,
            password, credential or auth, nor the user and password of a URL. What else a URL or a body holds, is
            written.

    The file must be on a disk of this machine. Raises `JournalUnavailable` when it cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], *, scope: str = "", secrets: Iterable[str] = ()) -> None:
        self.path = Path(path).resolve()
        self.scope = keys.check_name(scope, "scope")
        self.secrets = SECRETS | {name.lower() for name in secrets}
        self._lock = threading.RLock()
        self._connections = self._none_yet()
        self._owner: JournalOwner | None = None
        _journals.add(self)
        with self._transaction() as connection:
            self._create(connection)

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}, scope={self.scope!r})"

    # ------------------------------------------------------------ what a client asks

    def begin(self, entry: Entry, now: float, hold: float, run: str = "") -> Entry:
        """Write a request before it is sent, and hold it for ``hold`` seconds; return it as the journal has it.

        ``run`` names the call that is at it: the request stays until every call with its key has ended. One that is
        there already is an earlier attempt of the same request, which goes on with what is known of it. Raises
        `RequestKeyReused` if it is another request, and `JournalUnavailable`.
        """
        with self._transaction() as connection:
            owner = self.owner.name
            found = self._find(connection, entry.id)
            if found is None:
                row = _row(entry._replace(owner=owner, held_until=now + hold, runs=(run,)))
                connection.execute(f"INSERT INTO requests ({_COLUMNS}) VALUES ({','.join('?' * len(row))})", row)
                return entry
            if (found.method, found.url, found.body) != (entry.method, entry.url, entry.body):
                raise RequestKeyReused(
                    f"{found.method} {hide_query(found.url)} is in the journal with this key ({found.name})."
                )
            held = found if found.owner == owner or self.is_held(found, now) else self._take(found)
            self._hold(connection, held._replace(held_until=max(held.held_until, now + hold), runs=(*held.runs, run)))
            return found

    def settle(self, id: bytes, run: str = "") -> None:
        """Its caller has an answer: the request leaves the journal, if no other call is at it or ended in doubt.

        It is not waited for that this is on disk. If the machine loses its power at once, the request is there again,
        and resuming it gets the same answer.
        """
        with self._transaction(synchronous="NORMAL") as connection:
            self._leave(connection, id, run)

    def release(self, id: bytes, run: str = "", attempts: int = 0, last: str = "") -> None:
        """It ended in doubt: it stays, and may be resumed once no call is at it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE requests SET in_doubt = 1, attempts = attempts + ?, "
                "last = CASE ? WHEN '' THEN last ELSE ? END WHERE id = ?",
                (attempts, last, last, id),
            )
            self._leave(connection, id, run)

    # ------------------------------------------------------------ what people and resuming processes ask

    def pending(self) -> list[Entry]:
        """Every request of this scope, the oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM requests WHERE scope = ? ORDER BY created, id", (self.scope,)
            )
            return [_entry(row) for row in rows.fetchall()]

    def ids(self) -> list[bytes]:
        """Every request of this scope by its id, the oldest first."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT id FROM requests WHERE scope = ? ORDER BY created, id", (self.scope,))
            return [id for (id,) in rows.fetchall()]

    def find(self, id: bytes) -> Entry | None:
        """One request."""
        with self._transaction() as connection:
            return self._find(connection, id)

    def is_held(self, entry: Entry, now: float) -> bool:
        """Tell whether a living process is at it."""
        return bool(entry.owner) and now < entry.held_until and is_alive(self.path, entry.owner)

    def take(self, id: bytes, now: float, hold: float) -> Entry | None:
        """Take a request that no living process holds; None if there is none."""
        with self._transaction() as connection:
            found = self._find(connection, id)
            if found is None or self.is_held(found, now):
                return None
            self._hold(connection, self._take(found)._replace(held_until=now + hold))
            return found

    def let_go(self, id: bytes) -> bool:
        """Give back what `take` took, and no call came to be at; whether there was such a one."""
        with self._transaction() as connection:
            update = "UPDATE requests SET owner = '' WHERE id = ? AND owner = ? AND runs = '[]'"
            return connection.execute(update, (id, self.owner.name)).rowcount > 0

    def discard(self, id: bytes) -> bool:
        """Remove a request for good, without sending it; whether there was one."""
        with self._transaction() as connection:
            return connection.execute("DELETE FROM requests WHERE id = ?", (id,)).rowcount > 0

    def close(self) -> None:
        """Close the file; what this process holds is free for others."""
        with self._lock:
            self._connections.close()
            self._connections = self._none_yet()
            if self._owner is not None:
                self._owner.close()
            self._owner = None

    # ------------------------------------------------------------ inside

    @property
    def owner(self) -> JournalOwner:
        """This journal, as others see it."""
        with self._lock:
            if self._owner is None:
                self._owner = _run_guarded(lambda: JournalOwner(self.path))
            return self._owner

    def _find(self, connection: sqlite3.Connection, id: bytes) -> Entry | None:
        row = connection.execute(f"SELECT {_COLUMNS} FROM requests WHERE id = ?", (id,)).fetchone()
        return None if row is None else _entry(row)

    def _take(self, found: Entry) -> Entry:
        """Take an entry over if its process is dead; calls of the former owner have no effect any more."""
        return found._replace(owner=self.owner.name, held_until=0.0, runs=(), in_doubt=False)

    def _hold(self, connection: sqlite3.Connection, held: Entry) -> None:
        connection.execute(
            "UPDATE requests SET owner = ?, held_until = ?, runs = ?, in_doubt = ? WHERE id = ?",
            (held.owner, held.held_until, json.dumps(held.runs), held.in_doubt, held.id),
        )

    def _leave(self, connection: sqlite3.Connection, id: bytes, run: str) -> None:
        """A call has ended. The last one frees a request that is in doubt, and removes any other one."""
        found = connection.execute("SELECT runs, in_doubt FROM requests WHERE id = ?", (id,)).fetchone()
        runs = json.loads(found[0]) if found else []
        if run not in runs:
            return  # others have taken it meanwhile: it is theirs
        runs.remove(run)
        if runs:
            connection.execute("UPDATE requests SET runs = ? WHERE id = ?", (json.dumps(runs), id))
        elif found[1]:
            connection.execute("UPDATE requests SET runs = '[]', owner = '' WHERE id = ?", (id,))
        else:
            connection.execute("DELETE FROM requests WHERE id = ?", (id,))

    @contextmanager
    def _transaction(self, *, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
        """One transaction; on disk behind the block, if it is FULL."""
        with self._lock, ExitStack() as lent:
            connection = _run_guarded(lambda: lent.enter_context(Borrowed(self._connections)))
            try:
                _run_guarded(lambda: connection.execute(f"PRAGMA synchronous = {synchronous}"))
                _run_guarded(lambda: connection.execute("BEGIN IMMEDIATE"))
                yield connection
                _run_guarded(lambda: connection.execute("COMMIT"))
            except sqlite3.Error as error:
                raise _unavailable(error) from error

    def _none_yet(self) -> SqlitePool[Connection]:
        return SqlitePool(self.path, self._connect)

    def _connect(self) -> Connection:
        _protect(self.path)
        return SqliteFile(str(self.path), busy=10.0).connect()

    def _create(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise ConfigurationError(f"{self.path} is not a journal of this version of retrysafe: give another file.")
        if version == 0:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise ConfigurationError(
                    f"{self.path} is a database of another application: give the journal its own file."
                )
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _renew_after_fork(self) -> None:
        """In a child: the name and the lock are its parent's."""
        if self._owner is not None:
            self._owner.close()
        self._lock = threading.RLock()
        self._owner = None


def _protect(path: Path) -> None:
    """Make a file, if there is none, that only its owner can read, as the files that SQLite keeps beside it.

    Raises `ConfigurationError` for a file of another owner.
    """
    with suppress(FileExistsError):  # to open and close one that exists would end the locks that this process has on it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        file = path.with_name(name)
        with suppress(FileNotFoundError):
            found = file.lstat()
            if not stat.S_ISREG(found.st_mode) or not _is_ours(found):
                raise ConfigurationError(
                    f"{file} belongs to another user, who could read keys and bodies. Give another path."
                )
            if found.st_mode & 0o077:
                file.chmod(0o600)


def _is_ours(found: os.stat_result) -> bool:
    """Tell whether a file belongs to this user; the administrator may look at every journal."""
    user = os.geteuid() if hasattr(os, "geteuid") else found.st_uid
    return user in (found.st_uid, 0)


def _entry(row: tuple[Any, ...]) -> Entry:
    found = Entry._make(row)
    headers = tuple((name, value) for name, value in json.loads(row[5]))
    return found._replace(headers=headers, runs=tuple(json.loads(row[-2])), in_doubt=bool(found.in_doubt))


def _row(entry: Entry) -> tuple[Any, ...]:
    return (*entry[:5], json.dumps(entry.headers), *entry[6:-2], json.dumps(entry.runs), entry.in_doubt)


def _run_guarded(do: Callable[[], T]) -> T:
    try:
        return do()
    except (sqlite3.Error, OSError) as error:
        raise _unavailable(error) from error
    except StoreUnavailable as error:
        raise JournalUnavailable(error.detail) from error


def _unavailable(error: Exception) -> JournalUnavailable:
    return JournalUnavailable(f"{type(error).__name__}: {error}.")


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _after_in_child() -> None:
    for journal in list(_journals):
        journal._renew_after_fork()


runtime.in_child(_after_in_child)
