"""Pages take no longer when the store grows: each of their statements walks an index, and looks at a bounded number.

At full effort the store has ten million records. How long the pages take then, `tests.console.measuring` shows.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe.admin.operator import MOST_COUNTED, SAMPLE, Operator
from retrysafe.backends.driver import run
from retrysafe.backends.sql.selection import SPAN
from retrysafe.protocol.records import EffectiveState, Filter, State
from retrysafe.protocol.requests import Ask, Query, ask
from retrysafe.protocol.store import CountingStore
from tests.console.conftest import Deck, emptied
from tests.console.crowd import DAY, UNKNOWN_OF, fill
from tests.console.measuring import PATHS, reads
from tests.console.visiting import Visitor
from tests.proving.effort import effort

ROWS = int(os.environ.get("RETRYSAFE_CONSOLE_ROWS", effort(40_000, 10_000_000)))
"""A tenth of them would do to be far above what a statement looks at; the variable is for a run between the two."""
STATES = EffectiveState
FILTERS = {
    "all": Filter(),
    "boundary": Filter(boundary="payments"),
    "nothing": Filter(boundary="no such boundary", operation="no such operation"),
    "scope": Filter(scope="tenant-7", states=frozenset({STATES.FAILED})),
    "lapsed": Filter(states=frozenset({STATES.LAPSED})),
    "hash": Filter(digits="ab12"),
    "old": Filter(older_than=20 * 3_600_000_000),
    "unknown": Filter(states=frozenset({STATES.UNKNOWN})),
    "unknown since": Filter(states=frozenset({STATES.UNKNOWN}), since=1, until=2**60, boundary="payments"),
    "unknown of nothing": Filter(states=frozenset({STATES.UNKNOWN}), boundary="no such boundary"),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """A store with many records."""
    deck = emptied(request.param, tmp_path_factory.mktemp("crowd"))
    fill(deck.url, ROWS)
    yield deck
    deck.sql(f"{'DELETE FROM' if deck.url.startswith('sqlite') else 'TRUNCATE'} retrysafe_records")
    deck.close()


def explained(operator: Operator, one: Ask[Any]) -> str:
    """The plan of a statement."""
    client = operator._backend.client()
    words = "EXPLAIN QUERY PLAN" if operator._backend.kind == "sqlite" else "EXPLAIN"
    query = one.request._replace(sql=f"{words} {one.request.sql}")

    def put() -> Any:
        return (yield from ask(Ask(query, lambda answer: "\n".join(str(row[-1]) for row in answer.rows))))

    return str(run(put(), client))


def judge(plan: str, kind: str, wanted: Filter, *, by_age: bool) -> None:
    """Fail if the plan reads more of the table than a stretch of an index."""
    if kind == "sqlite":
        index = "retrysafe_records_unknown" if by_age else "sqlite_autoindex_retrysafe_records_1"
        reads = [line for line in plan.splitlines() if re.match(r"(SCAN|SEARCH) r\b", line)]
        assert any(f"INDEX {index}" in line for line in reads), plan
        assert all("INDEX" in line or line == "SCAN r" for line in reads), plan
        assert reads.count("SCAN r") <= plan.count("MATERIALIZE looked") + plan.count("CO-ROUTINE looked") + 2, plan
        return
    reads = [line for line in plan.splitlines() if " on retrysafe_records" in line]
    index = "retrysafe_records_unknown" if by_age else "retrysafe_records_pkey"
    assert reads, plan
    assert not [line for line in reads if "Seq Scan" in line], plan
    assert all(f"Scan using {index}" in line for line in reads if "Bitmap" not in line), plan
    if any("Bitmap" in line for line in reads):  # in the order of the table, for the few with these digits
        assert wanted.digits, plan


def test_every_statement_walks_an_index_and_looks_at_a_bounded_number(crowd: Deck) -> None:
    with Operator(crowd.url, observers=()) as operator:
        store, kind = operator._backend.store, operator._backend.kind
        for name, wanted in FILTERS.items():
            by_age = wanted.states == {STATES.UNKNOWN}
            later = f"{time.time_ns() // 1000 - DAY}-{'7f' * 32}" if by_age else "7f" * 32
            for cursor in (None, later):
                judge(explained(operator, store.scan(wanted, cursor, 50)), kind, wanted, by_age=by_age)
            assert isinstance(store, CountingStore)
            if by_age:  # behind those that are written as unknown: the attempts that died in doubt
                died = store.scan(wanted, f"lapsed-{'7f' * 32}", 50)
                judge(explained(operator, died), kind, wanted, by_age=False)
            for part, counting in enumerate(store.count_selected(wanted, MOST_COUNTED)):
                judge(explained(operator, counting), kind, wanted, by_age=by_age and part == 0)
            found = operator.page(wanted, None, 50)
            assert all(wanted.takes(record) for record in found.records), name


def test_a_page_is_found_whatever_else_there_is(crowd: Deck) -> None:
    with Operator(crowd.url, observers=()) as operator:
        unknown = operator.count(FILTERS["unknown"])
        each = [record.state for record in operator.each(FILTERS["unknown"])]
        assert each.count(State.UNKNOWN) == ROWS // UNKNOWN_OF
        assert each.count(State.RUNNING) > 0
        assert ROWS // UNKNOWN_OF < unknown.records <= len(each)
        assert unknown.capped
        assert operator.count().records == MOST_COUNTED
        assert operator.count().capped
        nothing = operator.page(FILTERS["nothing"], None, 50)
        assert (nothing.records, nothing.cursor is not None) == ([], ROWS > SPAN)
        assert len(operator.sample().records) == SAMPLE
        assert not operator.sample().whole
        ages = [record.updated for record in operator.page(FILTERS["unknown"], None, 50).records]
        assert ages == sorted(ages), "the oldest first"


def test_the_measuring_of_pages_tells_a_read_of_the_whole_table(crowd: Deck) -> None:
    with Operator(crowd.url, observers=()) as operator:
        backend = operator._backend
        whole = Query("SELECT count(*) FROM retrysafe_records AS r WHERE r.scope <> 'tenant-7'", {})
        ((way, rows),) = reads(backend, whole)
        assert (way, rows) in (("SCAN r", 0), ("Seq Scan", ROWS))
        for wanted in (FILTERS["nothing"], FILTERS["unknown"]):
            found = dict(reads(backend, operator._backend.store.scan(wanted, None, 50).request))
            assert found
            assert all(way.startswith("`") for way in found), found
            assert all(number <= SPAN for number in found.values()), found


async def test_every_page_loads(crowd: Deck) -> None:
    visitor = Visitor(crowd.console())
    for path in PATHS:
        assert (await visitor.get(path)).status == 200
    found = await visitor.submit(await visitor.get("/keys"), "/keys/find", {"key": "order-1042"})
    assert found.status == 200
    await visitor.close()
