"""The selection of dead letters, as conditions on their table; and their number, by kind."""

from __future__ import annotations

from typing import Any

from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol.messages import DeadLetterFilter, Groups
from retrysafe.protocol.requests import Rows

_OWNER = ("boundary", "consumer")
"""Columns that dead letters of inboxes have, and those of an outbox have not."""
_COLUMNS = (("topic", "topic"), ("message_key", "key"), ("message_type", "type"), *((name, name) for name in _OWNER))


def conditions(store: SqlStore, chosen: DeadLetterFilter) -> tuple[str, dict[str, Any]]:
    """The conditions on a row ``d``, to be added to others, and their parameters."""
    params: dict[str, Any] = {f"id{i}": one for i, one in enumerate(chosen.ids)}
    p = store.p
    found = []
    if chosen.ids:
        found.append(f"d.message_id IN ({', '.join(p('operation', name) for name in params)})")
    for column, name in _COLUMNS:
        if (value := getattr(chosen, name)) is not None:
            found.append(f"d.{column} = {p('operation', f'of_{name}')}")
            params[f"of_{name}"] = value
    if chosen.except_type is not None:
        found.append(f"d.message_type <> {p('operation', 'not_of_type')}")
        params["not_of_type"] = chosen.except_type
    if chosen.error is not None:
        escaped = chosen.error.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        found.append(f"d.error LIKE {p('operation', 'said')} ESCAPE '!'")
        params["said"] = f"%{escaped}%"
    return "".join(f" AND {condition}" for condition in found), params


def group(
    store: SqlStore, source: str, order: str, chosen: DeadLetterFilter, most: int | None
) -> tuple[str, dict[str, Any]]:
    """The statement that counts dead letters ``d`` of a source by kind, and its parameters.

    With ``most`` it looks at so many in this order, whatever the filter, so that its time is bounded.
    """
    where, params = conditions(store, chosen)
    if most is not None:
        columns = "d.message_id, d.topic, d.message_key, d.message_type, d.error"
        owner = "".join(f", d.{name}" for name in _OWNER if getattr(chosen, name) is not None)
        source = f"(SELECT {columns}{owner} FROM {source} ORDER BY {order} LIMIT {store.p('limit')}) AS d"
        params["limit"] = most
    sql = (
        f"SELECT d.topic, d.message_type, d.error, count(*) FROM {source} WHERE 1 = 1{where} "
        "GROUP BY d.topic, d.message_type, d.error ORDER BY 4 DESC, 1, 2, 3"
    )
    return sql, params


def read_groups(answer: Rows) -> Groups:
    return {(topic, type_, error): int(count) for topic, type_, error, count in answer.rows}
