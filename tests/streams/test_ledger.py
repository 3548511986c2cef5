"""A batch is written once: the data and the position are committed together, on every kind of ledger."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError
from retrysafe.streams import Fenced, OriginChanged, PositionMissing, Span, SqlLedger
from retrysafe.streams.ledger import first_to_write, source_of
from retrysafe.streams.positions import NONE, Position
from tests.conftest import require
from tests.docs.pages import ROOT
from tests.streams.targets import SQL, SqlTarget, Target, target
from tests.tables import each_row

CHILD = """
import os, pickle, signal, sys
place, die, first, next = pickle.load(sys.stdin.buffer)

def work(handle, start):
    place.write(range(start, next), handle)
    if die == "before the commit":
        os.kill(os.getpid(), signal.SIGKILL)

from retrysafe.streams import Span
ledger = place.ledger()
ledger.apply("in/0", Span(first, next), work)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=[*SQL, "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param != "sqlite":
        require(request.param)
    made = target(request.param, tmp_path)
    yield made
    made.close()


def apply(ledger: Any, place: Target, first: int, upto: int, **options: Any) -> bool:
    """Write the numbers of a span."""
    done: bool = ledger.apply(
        "in/0", Span(first, upto), lambda handle, start: place.write(range(start, upto), handle), **options
    )
    return done


@pytest.mark.fault(50)
def test_a_span_is_written_once_and_what_overlaps_is_left_out(place: Target) -> None:
    ledger = place.ledger()
    assert apply(ledger, place, 0, 3)
    assert not apply(ledger, place, 0, 3)
    assert not apply(ledger, place, 1, 2)
    assert apply(ledger, place, 1, 5)
    again = place.ledger()
    assert not apply(again, place, 3, 5)
    assert apply(again, place, 7, 9)  # offsets may have gaps
    assert place.written() == [0, 1, 2, 3, 4, 7, 8]


@pytest.mark.slow
@pytest.mark.fault(3, 9)
@pytest.mark.parametrize("die", ["before the commit", "after it"])
def test_a_process_that_is_killed_leaves_both_or_neither(place: Target, die: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=pickle.dumps((place, die, 0, 3)), cwd=ROOT, env=os.environ, check=False
    )
    assert child.returncode == -signal.SIGKILL
    assert apply(place.ledger(), place, 0, 4)
    assert place.written() == [0, 1, 2, 3]


def test_an_exception_leaves_neither_and_goes_on(place: Target) -> None:
    ledger = place.ledger()

    def work(handle: Any, _first: int) -> None:
        place.write([1, 2], handle)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.apply("in/0", Span(0, 3), work)
    assert apply(ledger, place, 0, 3)
    assert place.written() == [0, 1, 2]


def test_a_position_of_an_aborted_transaction_does_not_count(tmp_path: Path) -> None:
    require("kafka")
    place = target("kafka", tmp_path)
    ledger, found = place.ledger(), []

    def work(tx: Any, _first: int) -> None:
        tx.produce(f"{place.name}.positions", json.dumps(Position(9, 1, "")).encode(), key=b"in/0")
        assert tx._producer.flush(20) == 0  # the broker has it
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.apply("in/0", Span(0, 3), work)
    found.append(ledger.position("in/0"))
    assert apply(ledger, place, 0, 3)
    found.append(ledger.position("in/0"))
    assert found == [NONE, 3]
    place.close()


@pytest.mark.slow
@pytest.mark.fault(17)
def test_a_replaced_owner_writes_nothing(place: Target) -> None:
    old, new = place.ledger(), place.ledger()
    before = old.take("in/0")
    assert apply(old, place, 0, 2, epoch=before)
    after = new.take("in/0")
    assert apply(new, place, 2, 4, epoch=after)
    with pytest.raises(Fenced):
        apply(old, place, 4, 6, epoch=before)
    assert apply(new, place, 4, 5, epoch=after)
    assert place.written() == [0, 1, 2, 3, 4]


def test_another_origin_is_other_input(place: Target) -> None:
    ledger = place.ledger()
    apply(ledger, place, 0, 2, origin="a query")
    with pytest.raises(OriginChanged, match="'a query'"):
        apply(ledger, place, 0, 2, origin="a query with a new checkpoint")
    assert apply(ledger, place, 2, 3, origin="a query")
    assert place.written() == [0, 1, 2]


def test_input_that_was_never_written_is_missed(place: Target) -> None:
    ledger = place.ledger()
    apply(ledger, place, 5, 6, gaps=False)
    with pytest.raises(PositionMissing):
        apply(ledger, place, 7, 8, gaps=False)
    assert place.written() == [5]


@pytest.mark.slow
def test_sources_do_not_know_each_other(place: Target) -> None:
    ledger = place.ledger()
    sources = ("in/0", "in/1", "", "IN/0", "in/0 ", "ìn/0", " ")  # of which a collation may take some for one
    for source in sources:
        assert ledger.apply(source, Span(0, 1), lambda handle, _first: place.write([7], handle))
    assert place.written() == [7] * len(sources)
    if isinstance(ledger, SqlLedger):
        assert ledger.forget() == len(sources)


@pytest.mark.fault(16)
@pytest.mark.parametrize("kind", SQL)
def test_of_those_who_write_the_same_span_at_once_one_does(kind: str, tmp_path: Path) -> None:
    if kind != "sqlite":
        require(kind)
    place = target(kind, tmp_path)
    all_there, done = threading.Barrier(4), []

    def run() -> None:
        with closing(place.ledger()) as ledger:  # type: ignore[type-var]
            all_there.wait()
            done.append([apply(ledger, place, at, at + 1) for at in range(5)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [sum(turn) for turn in zip(*done, strict=True)] == [1] * 5
    assert place.written() == list(range(5))
    place.close()


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_connection_that_has_died_is_replaced(kind: str, tmp_path: Path) -> None:
    require(kind)
    place = target(kind, tmp_path)
    assert isinstance(place, SqlTarget)
    ledger = place.ledger()
    apply(ledger, place, 0, 1)

    def work(handle: Any, _first: int) -> None:
        place.write([1], handle)
        kill, of = (
            ("SELECT pg_terminate_backend(%s)", handle.info.backend_pid)
            if kind == "postgresql"
            else ("KILL %s", handle.thread_id())
        )
        place.do(kill % of)

    with pytest.raises(Exception, match=r"(?i)terminat|lost|killed|gone|clos"):
        ledger.apply("in/0", Span(1, 2), work)
    assert apply(ledger, place, 1, 2)
    assert place.written() == [0, 1]
    place.close()


@each_row("span", [Span(3, 3), Span(3, 2), Span(-2, 2)])
def test_an_empty_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="is empty, or begins below 0"):
        first_to_write("job", "in/0", Position(NONE, 0, ""), span, origin="", epoch=None, gaps=True)


@each_row(
    ("options", "told"),
    [
        ({"job": ""}, "job=''"),
        ({"job": "x" * 251}, "job="),
        ({"job": "a\0b"}, "job="),
        ({"placeholder": ":1"}, "placeholder=':1'"),
        ({"table": "positions; DROP TABLE orders"}, "table="),
    ],
)
def test_impossible_arguments_are_refused_at_once(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        SqlLedger(lambda: None, **{"job": "totals", **options})


def test_autocommit_is_refused(tmp_path: Path) -> None:
    import sqlite3

    ledger = SqlLedger(lambda: sqlite3.connect(tmp_path / "x.db", isolation_level=None), "totals", placeholder="?")
    with pytest.raises(ConfigurationError, match="autocommit"):
        ledger.apply("in/0", Span(0, 1), lambda _connection, _first: None)


def test_names_of_two_types_are_two_sources() -> None:
    names: list[object] = [1, "1", "repr 1", True, 1.0, b"1", ("1",), "('1',)", "repr '1'", None, "None"]
    assert len({source_of(one) for one in names}) == len(names)
    assert source_of("orders/0") == "orders/0"


class Colour(str, Enum):  # noqa: UP042 - it is formatted as its name
    RED = "red"


@dataclass(frozen=True)
class Place:
    names: Any


VARYING: dict[str, object] = {
    "object": object(),
    "object in a tuple": (1, object()),
    "frozenset": frozenset("ab"),
    "set": (1, {"a", "b"}),  # their repr names no class
    "dict": {"a": 1, "b": 2},  # which equals another with another order
    "set in a dataclass": Place({"a", "b"}),
    "dict in a list": [{"a": 1}],
    "function": lambda: None,
}


def test_text_of_any_class_is_text() -> None:
    assert source_of(Colour.RED) == source_of("red") == "red"


def test_the_contents_of_text_do_not_matter() -> None:
    for name in (("x at 0x1>",), ("frozenset(",), Place("x at 0x1>")):
        assert source_of(name) == f"repr {name!r}"


@each_row("name", VARYING.values(), ids=VARYING)
def test_a_name_that_another_process_writes_differently_is_refused(name: object) -> None:
    with pytest.raises(ConfigurationError, match="written differently by another process"):
        source_of(name)
