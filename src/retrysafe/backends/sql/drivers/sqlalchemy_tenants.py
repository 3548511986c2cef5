"""Tenants by schema on SQLAlchemy engines: when the work chooses a schema, by a map or a statement."""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.base import OptionEngine

from retrysafe.backends.sql.drivers.base import other_schema_error
from retrysafe.protocol.requests import Query

TRANSLATES = "schema_translate_map"
_SETS = re.compile(r"(?i)\bset(_config)?\b")
_NAMES_SCHEMA = re.compile(
    r"(?i)\s*+(?:/\*(?:[^*]|\*(?!/))*+\*/\s*+)*+(?:use|set\s++(?:(?:local|session)\s++)?schema)\s"
)
_other_schemas: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()
"""For an engine that we were given, how work on it chose the schema of a tenant, in words; empty if none has."""
_CHOSEN = "retrysafe_chosen"
"""The latest choice on a connection, in its ``info``: a new list each time."""
_WATCHED = "_retrysafe_watched"
"""The attribute of engines that are watched."""


def root_of(engine: Engine) -> Engine:
    while isinstance(engine, OptionEngine):
        engine = engine._proxied
    return engine


def _chooses_schema(statement: str) -> bool:
    """Tell whether a statement may choose a schema, and with it a tenant."""
    if _NAMES_SCHEMA.match(statement) is not None:
        return True
    return "search_path" in statement.lower() and _SETS.search(statement) is not None


def watch(engine: Engine) -> Engine:
    """Note it when a tenant's schema is chosen on the engine that this one is derived from, which is returned.

    By a schema_translate_map, of a connection or a single statement, or by a statement. What sets a new connection up
    before SQLAlchemy has it chooses no tenant.
    """
    root = root_of(engine)
    setattr(engine, _WATCHED, True)
    if root in _other_schemas:
        return root
    _other_schemas[root] = ""

    def note(_: object, options: dict[str, Any]) -> None:
        if options.get(TRANSLATES):
            _other_schemas[root] = f"{TRANSLATES} of SQLAlchemy"

    def read(connection: Connection, _: object, statement: str, __: object, context: Any, ___: object) -> None:
        if context.execution_options.get(TRANSLATES):
            reason = f"{TRANSLATES} of SQLAlchemy"
        elif _chooses_schema(statement):
            reason = f"by {statement[:80]!r}"
        else:
            return
        _other_schemas[root] = reason
        connection.info[_CHOSEN] = [reason]

    note(root, engine.get_execution_options())
    event.listen(root, "set_engine_execution_options", note)
    event.listen(root, "set_connection_execution_options", note)
    event.listen(root, "before_cursor_execute", read)
    return root


def are_watched(engine: Engine) -> bool:
    return hasattr(engine, _WATCHED)


def check_schema(connection: Connection, before: list[str] | None, *, ended: bool) -> list[str] | None:
    """Return the choice of the connection; raise `ConfigurationError` for one of the claim, or since ``before``."""
    if connection.get_execution_options().get(TRANSLATES):
        raise other_schema_error(f"{TRANSLATES} of SQLAlchemy", ended=ended)
    chosen: list[str] | None = connection.info.get(_CHOSEN)
    if ended and chosen is not None and chosen is not before:
        raise other_schema_error(chosen[0], ended=True)
    return chosen


def refuse_other_schema(root: Engine, request: Query) -> None:
    """Raise `ConfigurationError` for a request of a boundary without a scope, if work on the engine chose a schema."""
    if _other_schemas[root] and request.params.get("own_schema") is not None:
        raise other_schema_error(_other_schemas[root])
