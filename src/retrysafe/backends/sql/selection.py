"""Read and count the records that an operator selects, in a time that does not grow with the table.

A statement walks along an index from where the last one stopped, and looks at `SPAN` records at most; the filter is
applied to those alone. So a filter that nothing matches costs as much as any other, and no statistics can make the
database read and sort the whole table. Only records written as unknown have an index of their own, and are read oldest
first; all others are read in the order of their hashes, in which any stretch is a random sample of the table. Attempts
that died in doubt are unknown too, and have no such index: they come after those that have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends.sql import reading
from retrysafe.backends.sql.table import COLUMNS, LAPSED_IN_DOUBT, REPORTED, STANDING, any_of
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import HTTP, OWN, ROUTED, Count, EffectiveState, Filter, Page
from retrysafe.protocol.requests import Ask, Rows

if TYPE_CHECKING:
    from retrysafe.backends.sql.statements import SqlStatements

SPAN = 2_000
"""Records that one statement looks at, at most."""
_LONGEST_INSTANT = 18
"""Digits of an instant in a cursor."""
_UNREAD = ("result", "media_type", "codec_version")
"""Columns that an operator's list leaves out."""


UNREAD = ", ".join(f"NULL AS {name}" if name in _UNREAD else f"r.{name}" for name in COLUMNS)
"""The columns of a record without its result."""
_COUNTED = ("updated", "key_hash", "boundary", "operation", "scope")
"""The columns of the index of unknown records, which are counted without a look at the table."""
_JUDGED = (*_COUNTED, "state", "effects", "lease_until", "expires", "tombstone_until")
"""The columns by which a record is selected."""
_LAPSED = "lapsed-"
"""With this begins the cursor of unknown records that are not written as such."""


class IndexWalk(NamedTuple):
    """The records along one index: conditions that the index serves, its order, and the parameters of both.

    besides: the condition of the states that are wanted, unless the index serves it.
    begins: what a cursor begins with, before the place along the index.
    then: the cursor after its last record.
    """

    within: str
    order: tuple[str, ...]
    params: dict[str, Any]
    by_age: bool
    besides: str = ""
    begins: str = ""
    then: str | None = None

    def order_terms(self, descending: str = "") -> str:
        return ", ".join(f"r.{name}{descending}" for name in self.order)


def page(store: SqlStatements, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
    walk = _walk(store, wanted, cursor)
    conditions, params = _conditions(store, wanted, walk)
    if not conditions:
        sql = (
            f"SELECT {UNREAD}, t.now FROM {store.SCANNED}, {store.clock} WHERE {walk.within} "
            f"ORDER BY {walk.order_terms()} LIMIT {store.p('limit')}"
        )
        query = store.query(sql, {**walk.params, "limit": limit}, writes=False)
        return Ask(query, lambda answer: _page(answer, walk, limit))
    rows = (
        f"SELECT {UNREAD}, t.now AS read_at FROM looked AS r, {store.clock} WHERE {conditions} "
        f"ORDER BY {walk.order_terms()} LIMIT {store.p('limit')}"
    )
    end = ", ".join(f"y.{name}" if name in ("key_hash", "updated") else "NULL" for name in COLUMNS)
    last = f"SELECT r.key_hash, r.updated FROM looked AS r ORDER BY {walk.order_terms(' DESC')} LIMIT 1"
    sql = (
        f"WITH looked AS ({_look(store, walk, COLUMNS)}) SELECT x.* FROM ({rows}) AS x "
        f"UNION ALL SELECT {end}, (SELECT count(*) FROM looked) FROM ({last}) AS y"
    )
    query = store.query(sql, {**walk.params, **params, "limit": limit, "span": SPAN}, writes=False)
    return Ask(query, lambda answer: _page_of_span(answer, walk, limit))


def conditions_of(store: SqlStatements, wanted: Filter) -> tuple[str, dict[str, Any]]:
    """The conditions of a filter for a record ``r`` at time ``t.now``, and their parameters."""
    walk = _by_hash(store, wanted, None, any_of(wanted.states, REPORTED) if wanted.states else "")
    found, params = _conditions(store, wanted, walk)
    return " AND ".join(filter(None, (found, walk.within))), {**params, **walk.params}


def counts(store: SqlStatements, wanted: Filter, most: int) -> list[Ask[Count]]:
    """The numbers of selected records among the first ``most``, along each of the indexes that are walked."""
    walk = _walk(store, wanted, None)
    walks = [walk] if walk.then is None else [walk, _walk(store, wanted, walk.then)]
    return [_count(store, wanted, walk, most) for walk in walks]


def _count(store: SqlStatements, wanted: Filter, walk: IndexWalk, most: int) -> Ask[Count]:
    conditions, params = _conditions(store, wanted, walk)
    read = _COUNTED if walk.by_age else _JUDGED if conditions else walk.order
    sql = (
        f"WITH looked AS ({_look(store, walk, read)}) "
        f"SELECT (SELECT count(*) FROM looked AS r, {store.clock} WHERE {conditions or '1 = 1'}), "
        "(SELECT count(*) FROM looked)"
    )
    query = store.query(sql, {**walk.params, **params, "span": most + 1}, writes=False)

    def parse(answer: Rows) -> Count:
        found, looked = map(int, answer.rows[0])
        return Count(min(found, most), capped=looked > most)

    return Ask(query, parse)


def _look(store: SqlStatements, walk: IndexWalk, read: Iterable[str]) -> str:
    names = ", ".join(f"NULL AS {name}" if name in _UNREAD else f"r.{name}" for name in read)
    return (
        f"SELECT {names} FROM {store.SCANNED} WHERE {walk.within} ORDER BY {walk.order_terms()} "
        f"LIMIT {store.p('limit', 'span')}"
    )


def _walk(store: SqlStatements, wanted: Filter, cursor: str | None) -> IndexWalk:
    try:
        if wanted.states != {EffectiveState.UNKNOWN}:
            return _by_hash(store, wanted, cursor, any_of(wanted.states, REPORTED) if wanted.states else "")
        if cursor is None or not cursor.startswith(_LAPSED):
            return _by_age(store, wanted, cursor)
        place = cursor.removeprefix(_LAPSED) or None
        return _by_hash(store, wanted, place, f"({LAPSED_IN_DOUBT})")._replace(begins=_LAPSED)
    except ValueError:
        raise ConfigurationError(f"{cursor!r} is not a cursor of this selection.") from None


def _by_age(store: SqlStatements, wanted: Filter, cursor: str | None) -> IndexWalk:
    within, params = [STANDING[EffectiveState.UNKNOWN]], dict[str, Any]()
    updated = store.p("version", "after")
    if cursor is not None:
        at, _, digits = cursor.partition("-")
        params |= {"after": _instant(at), "key": bytes.fromhex(digits)}
        within.append(f"r.updated >= {updated}")
        within.append(f"(r.updated > {updated} OR r.key_hash > {store.p('key')})")
    elif wanted.since is not None:
        params["after"] = wanted.since
        within.append(f"r.updated >= {updated}")
    return IndexWalk(" AND ".join(within), ("updated", "key_hash"), params, by_age=True, then=_LAPSED)


def _instant(text: str) -> int:
    if not (text.isdigit() and len(text) <= _LONGEST_INSTANT):
        raise ValueError(text)
    return int(text)


def _by_hash(store: SqlStatements, wanted: Filter, cursor: str | None, besides: str) -> IndexWalk:
    within, params = list[str](), dict[str, Any]()
    if cursor is not None:
        params["key"] = bytes.fromhex(cursor)
        within.append(f"r.key_hash > {store.p('key')}")
    if wanted.digits:
        within.append(_range(store, wanted.digits, params))
    return IndexWalk(" AND ".join(within) or "1 = 1", ("key_hash",), params, by_age=False, besides=besides)


def _range(store: SqlStatements, digits: str, params: dict[str, Any]) -> str:
    """The condition that a hash begins with these digits; adds its parameters."""
    params |= {"lowest": bytes.fromhex(digits.ljust(64, "0")), "highest": bytes.fromhex(digits.ljust(64, "f"))}
    return f"r.key_hash BETWEEN {store.p('key', 'lowest')} AND {store.p('key', 'highest')}"


def _conditions(store: SqlStatements, wanted: Filter, walk: IndexWalk) -> tuple[str, dict[str, Any]]:
    """Return the conditions that the index does not serve, and their parameters."""
    params: dict[str, Any] = {
        name: value for name in ("boundary", "operation", "scope") if (value := getattr(wanted, name)) is not None
    }
    found = [f"r.{name} = {store.p(name)}" for name in params]
    if wanted.operation == HTTP:
        found[list(params).index("operation")] += f" OR substr(r.operation, 1, {len(ROUTED)}) = '{ROUTED}'"
        found = [f"({one})" for one in found]
    instants = {"since": ">=", "until": "<="}
    for name, than in instants.items():
        if (value := getattr(wanted, name)) is not None:
            params[name] = value
            found.append(f"r.updated {than} {store.p('version', name)}")
    if wanted.older_than is not None:
        params["age"] = wanted.older_than
        found.append(f"t.now - r.updated >= {store.p('version', 'age')}")
    if not wanted.own:
        found.append(f"r.boundary NOT IN {OWN}")
    if walk.by_age and wanted.digits:
        found.append(_range(store, wanted.digits, params))
    if walk.besides:
        found.append(walk.besides)
    return " AND ".join(found), params


def _page(answer: Rows, walk: IndexWalk, limit: int) -> Page:
    found = reading.records(answer)
    return Page(found, _cursor(walk, found[-1].key, found[-1].updated) if len(found) == limit else walk.then)


def _page_of_span(answer: Rows, walk: IndexWalk, limit: int) -> Page:
    """The page of a filter; the last row is the last record that was looked at, and how many they were."""
    state = COLUMNS.index("state")
    found = _page(Rows([row for row in answer.rows if row[state] is not None], answer.affected), walk, limit)
    if len(found.records) == limit:
        return found
    for row in answer.rows:
        if row[state] is None and int(row[-1]) == SPAN:
            return found._replace(cursor=_cursor(walk, bytes(row[0]), int(row[COLUMNS.index("updated")])))
    return found


def _cursor(walk: IndexWalk, key: bytes, updated: int) -> str:
    return walk.begins + (f"{updated}-{key.hex()}" if walk.by_age else key.hex())
