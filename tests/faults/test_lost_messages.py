"""Every message of a guarded operation is lost, cut in half, kept back or swallowed, on every store and driver.

Whatever the caller is told, the same key is asked again until it has an answer. Then there is exactly one effect (at
most one where the boundary promises no more, with *unknown* as an honest end), its receipt is replayed, no key is left
locked, no connection and no thread is left behind, and nobody has hung.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import retrysafe.backends.sql.drivers.deadline as deadline
from tests.faults.conftest import server_of as url_of
from tests.faults.helpers import Bank, Told, business_table, plain, rows_of, unique, until
from tests.faults.proxies.cells import Cell, Mode
from tests.faults.proxies.downstream import charged, served
from tests.faults.proxies.drivers import DRIVERS, FRAMINGS, SILENCE, Driver, server_of, through
from tests.faults.proxies.framing_http import HttpFraming
from tests.faults.proxies.points import Bench, Point, Story
from tests.faults.proxies.proxy import Fault, Kind, Proxy
from tests.proving.effort import effort
from tests.proving.plugin import Record
from tests.proving.proofs import Proof
from tests.stores.ageing import age_at

pytestmark = [pytest.mark.slow, pytest.mark.fault(2, 6, 13, 14, 15, 16, 17, 18, 19, 28, 44)]


class Way(NamedTuple):
    """A kind of fault, and when what is delayed by it is let go."""

    kind: Kind
    late: bool = False

    @property
    def name(self) -> str:
        return "late" if self.late else self.kind


DUPLICATE = Way("duplicate")
WAYS = (Way("before"), Way("after"), Way("mid-message"), Way("delayed"), Way("delayed", late=True), Way("half-open"))
ROWS = {
    "request lost": (2, 13),
    "reply lost": (2, 14, 28),
    "connection lost": (6, 14),
    "mid-message": (19,),
    "delayed": (15, 16),
    "applied late": (15, 17),
    "half-open": (18,),
    "duplicate": (16, 44),
    "two faults": (13, 14, 18, 19),
}
HTTP = ("boto3", "aiobotocore")
TWINS = {"postgresql": "psycopg", "mysql": "PyMySQL", "redis": "redis", "dynamodb": "boto3"}
LIBRARIES = {"postgresql": "psycopg", "mysql": "pymysql", "redis": "redis", "dynamodb": "dynamodb"}
CELLS: list[tuple[str, Mode]] = [
    (name, mode)
    for name, driver in DRIVERS.items()
    for mode in ("keyed", "external", "transactional", "transactional, tx=")
    if driver.begin is not None or "transactional" not in mode
]


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """One driver in one mode behind a proxy, with short deadlines."""
    name, mode = request.param
    driver = DRIVERS[name]
    direct = plain(url_of(LIBRARIES[driver.store], request))
    monkeypatch.setattr(deadline, "DEADLINE", SILENCE)
    before = threading.active_count()
    proxy = Proxy(server_of(direct), FRAMINGS[driver.store])
    for colour in ("connection", "connection_async"):  # their connect_timeout is two seconds or more
        monkeypatch.setattr(f"psycopg.{colour}.timeout_from_conninfo", partial(_patience, proxy))
    try:
        with business_table(direct) if "transactional" in mode else nullcontext("") as table:
            yield from _benches(driver, mode, direct, proxy, tmp_path, table)
        gc.collect()  # botocore keeps a connection whose answer was lost in a cycle with its error
        until(lambda: proxy.connections == 0)
    finally:
        proxy.close()
    until(lambda: threading.active_count() <= before)


def _patience(proxy: Proxy, options: dict[str, Any]) -> float:
    """Return the seconds for which psycopg waits for a connection; one that does not pass the proxy has time."""
    return SILENCE if int(options["port"]) == proxy.port else 10


def _benches(driver: Driver, mode: Mode, direct: str, proxy: Proxy, path: Path, table: str) -> Iterator[Bench]:
    options: dict[str, Any] = {"ledger": path / "bank.db", "table": table, "rows": lambda: rows_of(direct, table)}
    cell = Cell(driver, mode, through(direct, proxy.port), [Told()], **options)
    straight = Driver("elsewhere", driver.store, sync=True, insert=DRIVERS[TWINS[driver.store]].insert)
    url = f"{direct}?options=-c%20lock_timeout%3D100ms" if driver.store == "postgresql" else direct
    other: Mode = "transactional" if table else mode
    elsewhere = Cell(straight, other, url, [Told()], name=cell.name, **options)
    try:
        cell.open()
        elsewhere.open()
        yield Bench(cell, proxy, age_at(direct), elsewhere)
    finally:
        cell.end()
        elsewhere.end()


def _length(bench: Bench, *, greetings: bool) -> int:
    """Count the messages of an undisturbed operation; on a busy machine deadlines may disturb the first."""
    counts: list[int] = []

    def undisturbed() -> bool:
        key = unique("length")
        if greetings:
            bench.cell.close()
            bench.cell.open()
        bench.proxy.arm(greetings=greetings)
        answer = bench.cell.charge(key)
        counts.append(bench.proxy.count)
        return answer.receipt is not None and bench.cell.runs(key) == 1

    until(lambda: undisturbed() and undisturbed())
    return counts[-1]


def _points(bench: Bench, chance: Random, ways: Sequence[Way]) -> Iterator[Point]:
    """These kinds of fault at every message, or at a sample of them."""
    ways = _suited(bench, ways)
    sizes = {greetings: _length(bench, greetings=greetings) for greetings in (False, True)}
    only_greetings = sizes[True] - sizes[False]  # then come the same messages as on a connection that is there already
    singles = [
        Point((Fault(k, way.kind),), greetings, way.late)
        for greetings, size in ((False, sizes[False]), (True, only_greetings))
        for way in ways
        for k in range(1, size + 1)
    ]
    yield from effort(chance.sample(singles, len(singles)), singles)


def _pairs(bench: Bench, chance: Random) -> Iterator[Point]:
    """Two faults each: the second may meet what we do about the first."""
    kinds, size = [way.kind for way in _suited(bench, WAYS)], _length(bench, greetings=False)
    for _ in range(effort(1, 40)):
        first = chance.randint(1, size)
        second = first + chance.randint(1, 12)
        yield Point((Fault(first, chance.choice(kinds)), Fault(second, chance.choice(kinds))))


def _suited(bench: Bench, ways: Sequence[Way]) -> list[Way]:
    """Select the ways; one that only a deadline ends needs a deadline of ours."""
    bounded = _is_bounded(bench.cell.driver.name, bench.cell.mode)
    return [way for way in ways if bounded or not (way.late or way.kind == "half-open")]


each_cell = pytest.mark.parametrize("bench", CELLS, indirect=True, ids=lambda cell: " ".join(cell))
each_way = pytest.mark.parametrize("ways", effort(["all"], [way.name for way in WAYS]))


def _named(ways: str) -> Sequence[Way]:
    return WAYS if ways == "all" else [way for way in WAYS if way.name == ways]


@each_way
@each_cell
def test_with_any_fault_of_a_message_the_effect_happens_once(
    bench: Bench, ways: str, chance: Random, proof: Record
) -> None:
    """In `make test` a sample of the messages, in `make prove` every one."""
    if not _suited(bench, _named(ways)):
        pytest.skip("no deadline of ours on an engine of the user's, nor where tasks may share a connection")
    _walk(bench, _points(bench, chance, _named(ways)), proof)


@each_cell
def test_two_faults_in_one_operation(bench: Bench, chance: Random, proof: Record) -> None:
    _walk(bench, _pairs(bench, chance), proof)


@pytest.mark.parametrize("bench", [cell for cell in CELLS if cell[0] in HTTP], indirect=True, ids=" ".join)
def test_a_request_that_arrives_twice(bench: Bench, chance: Random, proof: Record) -> None:
    """HTTP alone allows it: something in between that got no answer sends it again."""
    _walk(bench, _points(bench, chance, [DUPLICATE]), proof)


def _walk(bench: Bench, points: Iterable[Point], proof: Record) -> None:
    injected: Counter[str] = Counter()
    for point in points:
        story = Story(bench, point).run()
        if story.hits:
            injected[story.wording] += 1
        if injected.total() >= effort(5, 10**9):
            break
    cell = bench.cell
    for fault, count in injected.items():
        store = f"{cell.driver.store}, {cell.driver.name}"
        proof(Proof("lost messages", store, cell.mode, fault, count, rows=ROWS[fault]))
    assert injected


USERS_OWN = ["psycopg", "psycopg async", "asyncpg", "PyMySQL", "asyncmy"]


def _is_bounded(name: str, mode: str) -> bool:
    """Tell whether our statements have a deadline: on engines, and for tasks on one connection, the user's has."""
    return not name.startswith("SQLAlchemy") and (name, mode) != ("psycopg async", "transactional, tx=")


def _is_given_up(bench: Bench) -> bool:
    """Tell whether one statement got no answer, and the caller a receipt, or an error where it cannot be asked again.

    It is neither where a busy machine is silent for as long itself, at the statements before it or after it.
    """
    bench.proxy.arm_on("half-open", ">", lambda message: b"retrysafe_records" in message)
    answer = bench.cell.charge(unique("key"))
    until(lambda: bench.proxy.half_open == 0)
    assert answer.expected, answer.trace  # StoreUnavailable, unless the caller's own rollback fails after it
    hits = [hit.fault.kind for hit in bench.proxy.hits]
    return hits == ["half-open"] and (answer.receipt is not None) == (bench.cell.mode != "transactional, tx=")


@pytest.mark.parametrize(
    "bench",
    [
        (name, mode)
        for name in USERS_OWN
        for mode in ("keyed", "transactional", "transactional, tx=")
        if _is_bounded(name, mode)
    ],
    indirect=True,
    ids=" ".join,
)
def test_our_statement_on_anybodys_connection_is_given_up(bench: Bench, proof: Record) -> None:
    """18: also on one that the caller opened, on an engine of the user's, and where the library has no option."""
    until(partial(_is_given_up, bench))
    cell = bench.cell
    proof(Proof("lost messages", f"{cell.driver.store}, {cell.driver.name}", cell.mode, "half-open", 1, rows=(18,)))


@each_way
def test_with_any_fault_of_a_call_the_bank_charges_once(
    ways: str, tmp_path: Path, sqlite_url: str, chance: Random, proof: Record
) -> None:
    """The downstream call of a keyed effect, made with `key_for`, to a bank that honours keys."""
    bank, http = Bank(tmp_path / "bank.db"), Driver("call downstream over HTTP", "sqlite", sync=True)
    with served(bank) as port:
        proxy = Proxy(("127.0.0.1", port), HttpFraming)
        charge = partial(charged, proxy.port, patience=SILENCE)
        cell = Cell(http, "keyed", sqlite_url, [Told()], ledger=bank.path, effect=charge)
        elsewhere = Cell(http, "keyed", sqlite_url, [Told()], ledger=bank.path, name=cell.name)
        try:
            cell.open()
            elsewhere.open()
            bench = Bench(cell, proxy, age_at(sqlite_url), elsewhere)
            _walk(bench, _points(bench, chance, (*_named(ways), DUPLICATE)), proof)
        finally:
            cell.end()
            elsewhere.end()
            proxy.close()
