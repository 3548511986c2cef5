"""Which dead letters are meant, as conditions on a table of them."""

from __future__ import annotations

from typing import Any

from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol.messages import DeadLetterFilter

_COLUMNS = (("topic", "topic"), ("message_key", "key"), ("message_type", "type"), ("consumer", "consumer"))


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
    if chosen.error is not None:
        escaped = chosen.error.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        found.append(f"d.error LIKE {p('operation', 'said')} ESCAPE '!'")
        params["said"] = f"%{escaped}%"
    return "".join(f" AND {condition}" for condition in found), params
