"""Whether a connection leads to PostgreSQL itself, or to a pooler that gives each transaction another session.

Drivers prepare statements by name for a session. Behind a pooler in transaction mode, such as PgBouncer, the next
session may not know the name, or may know it as another statement: then that one is run, and a BEGIN may begin nothing.
A pooler tells its clients a process id that it has made up; the server that is asked tells its own.
"""

from __future__ import annotations

from typing import Any

from retrysafe.errors import ConfigurationError, StoreUnavailable

PREPARED = (
    "The connection leads through a pooler such as PgBouncer, and its driver prepares statements by name: in "
    "transaction pooling the next session does not know them, or knows another statement by that name. Switch it off: "
    "statement_cache_size=0 for asyncpg (with SQLAlchemy in connect_args, with prepared_statement_cache_size=0 and "
    "prepared_statement_name_func=lambda: ''), or prepare_threshold=None for psycopg; or connect to PostgreSQL "
    "directly; or set max_prepared_statements in PgBouncer 1.21 or newer."
)
_COUNTED_NAMES = "__asyncpg_"
"""Names that every process of a driver counts from the beginning: those of one client are those of another."""


def question(pid: int) -> str:
    """Ask whether the session is the one that the client was told of, and by which name this query was prepared."""
    mine = f"pg_backend_pid() = {pid}"
    return f"SELECT {mine}, (SELECT max(name) FROM pg_prepared_statements WHERE position('{mine}' IN statement) > 0)"


def is_direct(answer: Any) -> bool:
    """Judge the row; raise `ConfigurationError` if there is a pooler that does not follow the names of the driver."""
    direct, name = answer
    if not direct and str(name).startswith(_COUNTED_NAMES):
        raise ConfigurationError(f"{PREPARED} Nothing of this claim was run.")
    return bool(direct)


def status_question(pid: int) -> str:
    """`question` for a protocol without rows: the status is "SELECT 1" in the same session, else "SELECT 0"."""
    return f"SELECT 1 WHERE pg_backend_pid() = {pid}"


DIRECT_STATUS = "SELECT 1"


def not_connected(error: BaseException) -> StoreUnavailable | ConfigurationError:
    """What a connection that could not be made amounts to."""
    text = str(error).strip() or type(error).__name__
    if "unsupported startup parameter" in text:
        return ConfigurationError(
            f"{text}. A pooler takes no such setting when a client connects: leave it out of store= and set it in the "
            "database (ALTER ROLE … SET), or connect to PostgreSQL directly."
        )
    return StoreUnavailable(text, unsent=True)
