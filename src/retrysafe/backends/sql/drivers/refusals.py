"""Errors of SQL databases that a person has to mend: the setting or permission that is wrong, and the remedy.

Each function returns what to do, or None for an error that is something else, such as an outage.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from retrysafe import lazy

_PASSWORD = "Correct the user and the password in store=."
_HOST = "Let the server admit this user from this host (pg_hba.conf, or CREATE USER for the host), or correct store=."
_DATABASE = "Create the database and run retrysafe migrate on it, or correct its name in store=."
_CONNECT = "Grant the user of store= access to the database, or correct store=."
_TABLES = (
    "Grant the user of store= SELECT, INSERT, UPDATE and DELETE on all tables retrysafe_*; retrysafe migrate also "
    "creates and alters tables."
)
_NO_TLS = "Switch TLS on in the server (ssl = on), or leave sslmode out of the URL in store=."
_OPTION = "Correct this option of the URL in store=."
_POSTGRESQL_STATES = {"28P01": _PASSWORD, "28000": _HOST, "3D000": _DATABASE}
_OF_OPTIONS = frozenset({"42704", "22023"})
_PERMISSION = "42501"
_POSTGRESQL_TEXTS = (
    (re.compile(r'password authentication failed|no password supplied|role ".*" does not exist'), _PASSWORD),
    (re.compile(r'no pg_hba.conf entry|authentication failed|role ".*" is not permitted to log in'), _HOST),
    (re.compile(r"permission denied for database"), _CONNECT),
    (re.compile(r'database ".*" does not exist'), _DATABASE),
    (re.compile(r"rejected SSL upgrade|server does not support SSL"), _NO_TLS),
    (re.compile(r"unrecognized configuration parameter|invalid (\w+ )?value|invalid connection option"), _OPTION),
)
"""libpq gives no SQLSTATE for a refused connection; the text is English unless the server is told otherwise."""
_MYSQL_NUMBERS = {
    **dict.fromkeys((1045, 1698), _PASSWORD),
    1130: _HOST,
    1049: _DATABASE,
    1044: _CONNECT,
    **dict.fromkeys((1142, 1143, 1370), _TABLES),
}
_MODE = "Change their owner or mode, or name another file in store=."
_SQLITE_CANTOPEN, _SQLITE_READONLY, _SQLITE_NOTADB = 14, 8, 26
_OURS = "retrysafe_"


def of_postgresql(state: str | None, text: str) -> str | None:
    if state == _PERMISSION:
        if "database" in text:
            return _CONNECT
        return _TABLES if _OURS in text or "schema" in text else None
    told = next((remedy for pattern, remedy in _POSTGRESQL_TEXTS if pattern.search(text)), None)
    if state is None or (state in _OF_OPTIONS and told is _OPTION):
        return told
    return _POSTGRESQL_STATES.get(state) and (told or _POSTGRESQL_STATES[state])


def of_mysql(number: object) -> str | None:
    return _MYSQL_NUMBERS.get(number) if isinstance(number, int) else None


def of_sqlite(code: int, path: str | None) -> str | None:
    """Return the remedy for an error with this code, of a statement or of opening the file at ``path``."""
    if code & 0xFF == _SQLITE_READONLY:
        found = None if path is None else of_file(path)
        return (
            found
            or f"{_user()} may not write to the file, or to its directory, where SQLite keeps its journal. {_MODE}"
        )
    if code & 0xFF == _SQLITE_NOTADB:
        return "The file is something else, or encrypted: name another one in store=."
    return of_file(path) if code & 0xFF == _SQLITE_CANTOPEN and path is not None else None


def of_file(path: str) -> str | None:
    """Why a SQLite file cannot be opened for writing, and what to do; None where it seems that it can be."""
    file = Path(path).absolute()
    if file.is_dir():
        return "It is a directory: name a file in it, such as sqlite:////directory/retrysafe.db."
    if not file.parent.is_dir():
        return f"Its directory does not exist. Create it (mkdir -p {file.parent}), or correct the path in store=."
    if file.exists() and not _may(file, os.R_OK | os.W_OK):
        return f"{_user()} may not read and write it. {_MODE}"
    if not _may(file.parent, os.W_OK | os.X_OK):
        return f"{_user()} may not write to {file.parent}, where SQLite creates the file and its journal. {_MODE}"
    return None


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _user() -> str:
    try:
        return f"The user {lazy.pwd.getpwuid(os.geteuid()).pw_name!r}"
    except (ImportError, KeyError):
        return "The user of this process"
