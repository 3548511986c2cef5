"""The decorator: keys, payloads, colours, methods, restarts, stored failures."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from retrysafe import (
    Boundary,
    ConfigurationError,
    Event,
    InvalidKey,
    KeyReused,
    ResultNotEncodable,
    StoredFailure,
    current,
    wait,
)
from tests.tables import each_row


@dataclass
class Order:
    id: str
    amount: int
    lines: tuple[str, ...] = ()


@pytest.fixture(params=["memory://", "sqlite"])
def boundary(request: pytest.FixtureRequest, tmp_path: Path) -> Boundary:
    store = request.param if request.param == "memory://" else f"sqlite:///{tmp_path / 'once.db'}"
    return Boundary("orders", store=store, permanent=KeyError)


class Counter:
    """Counts the runs of the guarded function."""

    def __init__(self) -> None:
        self.runs = 0


def test_a_function_runs_once_per_key(boundary: Boundary) -> None:
    counter = Counter()

    @boundary.once(key="order.id")
    def place(order: Order) -> dict[str, int]:
        counter.runs += 1
        return {"run": counter.runs}

    assert place(Order("a", 1)) == {"run": 1}
    assert place(Order("a", 1)) == {"run": 1}
    assert place(order=Order("b", 1)) == {"run": 2}


def test_a_coroutine_runs_once_per_key(boundary: Boundary) -> None:
    counter = Counter()

    @boundary.once(key="order.id")
    async def place(order: Order) -> Order:
        counter.runs += 1
        return order

    async def main() -> None:
        assert inspect.iscoroutinefunction(place)
        assert await place(Order("a", 1, ("x", "y"))) == Order("a", 1, ("x", "y"))
        assert await place(Order("a", 1, ("x", "y"))) == Order("a", 1, ("x", "y"))
        await boundary.aclose()

    asyncio.run(main())
    assert counter.runs == 1


def test_methods_leave_self_out_of_the_payload(boundary: Boundary) -> None:
    class Till:
        def __init__(self) -> None:
            self.open_since = object()
            self.runs = 0

        @boundary.once(key="number")
        def charge(self, number: int, amount: int = 5) -> int:
            self.runs += 1
            return amount

    first, second = Till(), Till()
    assert (first.charge(7), second.charge(7), second.charge(7, amount=5)) == (5, 5, 5)
    assert first.runs + second.runs == 1
    with pytest.raises(KeyReused) as caught:
        second.charge(7, 6)
    assert caught.value.differing == ("amount",)


@each_row(
    "key",
    ["order.lines[0]", lambda order: order.lines[0], lambda extra, order: order.lines[extra - 1]],
    ids=["path", "callable", "callable of some arguments in any order"],
)
def test_key_selectors(boundary: Boundary, key: Any) -> None:
    @boundary.once(key=key, payload=None)
    def place(order: Order, extra: int = 1) -> str:
        return current().key_for("x")

    assert place(Order("a", 1, ("line",))) == place(Order("b", 2, ("line",)))


def test_payload_selectors(boundary: Boundary) -> None:
    @boundary.once(key="order.id", payload="order.amount")
    def by_path(order: Order) -> int:
        return order.amount

    @boundary.once(key="order.id", payload=lambda order: {"amount": order.amount, "lines": order.lines})
    def by_callable(order: Order) -> int:
        return order.amount

    @boundary.once(key="order.id", payload=None)
    def unchecked(order: Order) -> int:
        return order.amount

    for function in (by_path, by_callable, unchecked):
        assert function(Order("a", 1)) == 1
    assert by_path(Order("a", 1, ("other line",))) == 1
    assert unchecked(Order("a", 2)) == 1
    with pytest.raises(KeyReused):
        by_path(Order("a", 2))
    with pytest.raises(KeyReused) as caught:
        by_callable(Order("a", 1, ("other line",)))
    assert caught.value.differing == ("lines",)


def test_an_argument_that_cannot_be_fingerprinted_names_the_way_out(boundary: Boundary) -> None:
    @boundary.once(key="key")
    def run(key: str, session: object) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'session' cannot be fingerprinted.*payload="):
        run("k", object())


def test_bad_selectors_are_refused_when_decorating(boundary: Boundary) -> None:
    def place(order: Order) -> None: ...

    for key, complaint in (("ordre.id", "no argument 'ordre'"), ("order.", "not a path"), ("", "not a path")):
        with pytest.raises(ConfigurationError, match=complaint):
            boundary.once(key=key)(place)
    with pytest.raises(ConfigurationError, match="'nobody', which is not an argument"):
        boundary.once(key=lambda nobody: "x")(place)


def test_a_path_that_leads_nowhere_is_an_invalid_key(boundary: Boundary) -> None:
    @boundary.once(key="order.reference")
    def place(order: Order) -> None: ...

    with pytest.raises(InvalidKey, match="leads nowhere"):
        place(Order("a", 1))


@each_row("key", ["", None, True, 1.5, "a" * 256, "a\nb", "\x00", "\ud800"])
def test_keys_that_cannot_serve_are_refused_before_the_work(boundary: Boundary, key: Any) -> None:
    @boundary.once(key="key", payload=None)
    def run(key: Any) -> None:
        pytest.fail("the work must not start")

    with pytest.raises(InvalidKey):
        run(key)


def test_ints_and_uuids_are_keys(boundary: Boundary) -> None:
    uuid = UUID("0" * 32)

    @boundary.once(key="key", payload=None, operation="same")
    def run(key: Any) -> str:
        return str(key)

    assert run(5) == run("5") == "5"
    assert run(uuid) == run(str(uuid))


@pytest.mark.fault(69)
def test_unicode_forms_are_two_keys(boundary: Boundary) -> None:
    @boundary.once(key="key")
    def run(key: str) -> str:
        return key

    assert run("é") == "é"
    assert run("e\u0301") == "e\u0301"


def test_permanent_failures_are_replayed_and_others_release(boundary: Boundary) -> None:
    counter = Counter()

    @boundary.once(key="key")
    def fails(key: str, error: str) -> str:
        counter.runs += 1
        if counter.runs == 1:
            raise {"permanent": KeyError, "transient": ValueError}[error]("no")
        return "ran again"

    with pytest.raises(ValueError, match="no"):
        fails("a", "transient")
    assert fails("a", "transient") == "ran again"
    counter.runs = 0
    with pytest.raises(KeyError):
        fails("b", "permanent")
    with pytest.raises(StoredFailure) as caught:
        fails("b", "permanent")
    assert caught.value.type == "KeyError"


def test_a_declared_failure_gives_the_first_caller_what_retries_get(boundary: Boundary) -> None:
    class Declined(Exception):
        def __init__(self) -> None:
            super().__init__("no funds")
            self.data = {"code": 7}

    @boundary.once(key="key")
    def charge(key: str) -> None:
        current().fail(Declined())

    for _ in range(2):
        with pytest.raises(StoredFailure) as caught:
            charge("k")
        assert (caught.value.type, caught.value.message, caught.value.data) == ("Declined", "no funds", {"code": 7})


def test_a_result_that_cannot_be_stored_is_withheld_for_everybody(boundary: Boundary) -> None:
    counter = Counter()

    @boundary.once(key="key")
    def run(key: str) -> object:
        counter.runs += 1
        return object()

    for _ in range(2):
        with pytest.raises(ResultNotEncodable):
            run("k")
    assert counter.runs == 1


def test_operations_keep_the_keys_of_functions_apart(boundary: Boundary) -> None:
    @boundary.once(key="key")
    def first(key: str) -> str:
        return "first"

    @boundary.once(key="key")
    def second(key: str) -> str:
        return "second"

    assert (first("k"), second("k")) == ("first", "second")


def test_naming_the_same_operation_shares_keys(boundary: Boundary) -> None:
    @boundary.once(key="event_id", payload=None, operation="paid")
    def webhook(event_id: str, body: str) -> str:
        return "by webhook"

    with boundary.claim("e1", operation="paid") as claim:
        claim.result = "by queue"
    assert webhook("e1", "…") == "by queue"


def test_two_functions_of_one_name_are_refused(boundary: Boundary) -> None:
    def function() -> None: ...

    twin = type(function)(function.__code__, {}, "function")
    twin.__qualname__ = function.__qualname__
    boundary.once(key=lambda: "k")(function)
    with pytest.raises(ConfigurationError, match="operation="):
        boundary.once(key=lambda: "k")(twin)


def test_generators_are_refused(boundary: Boundary) -> None:
    def stream(key: str) -> Any:
        yield key

    async def astream(key: str) -> Any:
        yield key

    for function in (stream, astream):
        with pytest.raises(ConfigurationError, match="generator"):
            boundary.once(key="key")(function)


def test_wrong_arguments_raise_as_the_function_would(boundary: Boundary) -> None:
    @boundary.once(key="a")
    def function(a: str, b: int = 0, *, c: int = 0) -> None: ...

    @boundary.once(key="a")
    def plain(a: str, b: int) -> None: ...

    for call in (
        lambda: function(),  # type: ignore[call-arg]
        lambda: function("a", 1, 2),  # type: ignore[misc]
        lambda: plain("a"),  # type: ignore[call-arg]
        lambda: plain("a", 1, a="b"),  # type: ignore[misc]
        lambda: plain("a", 1, d=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError):
            call()


def test_sync_wait_on_a_running_loop_is_refused_when_called(tmp_path: Path) -> None:
    boundary = Boundary("waiting", store="memory://", concurrency=wait(5))

    @boundary.once(key="key")
    def run(key: str) -> str:
        return key

    async def on_a_loop() -> None:
        with pytest.raises(ConfigurationError, match="running event loop"):
            run("k")

    asyncio.run(on_a_loop())
    assert run("k") == "k"


def test_on_missing_pass_runs_unguarded() -> None:
    seen: list[Event] = []
    boundary = Boundary("lenient", store="memory://", on_missing="pass", observers=[seen.append])
    counter = Counter()

    @boundary.once(key="key")
    def run(key: str | None) -> int:
        counter.runs += 1
        with pytest.raises(ConfigurationError, match="without a key"):
            current().key_for("downstream")
        return counter.runs

    assert (run(None), run(""), run(None)) == (1, 2, 3)
    assert [occurrence.name for occurrence in seen] == ["passed"] * 3


def test_tx_argument_is_joined(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "joined.db"
    boundary = Boundary("joined", store=f"sqlite:///{file}", effects="transactional")

    @boundary.once(key="key")
    def place(key: str, tx: sqlite3.Connection | None = None) -> str:
        assert current().tx is (tx or current().tx)
        current().tx.execute("INSERT INTO goods VALUES (?)", (key,))
        return "placed"

    connection = sqlite3.connect(file)
    with connection:
        connection.execute("CREATE TABLE goods (value TEXT PRIMARY KEY)")
    with connection:
        assert place("a", connection) == "placed"
    assert place("a") == "placed"
    assert place("b") == "placed"
    assert connection.execute("SELECT value FROM goods ORDER BY value").fetchall() == [("a",), ("b",)]
    connection.close()
    boundary.close()
