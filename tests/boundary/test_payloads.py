"""The same payload: over a deployment, for values that are None, and for models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import pytest

from retrysafe import Boundary, KeyReused
from retrysafe.protocol import fingerprint
from retrysafe.protocol.fingerprint import of_parts
from tests.tables import each_row

Guarding = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture
def boundary() -> Boundary:
    return Boundary("payments", store="memory://", observers=())


@pytest.fixture
def once(boundary: Boundary) -> Guarding:
    """Guards one release of the function after another, over one store."""
    return boundary.once(key="key", operation="pay", shared=True)


def claimed_by_0_1(boundary: Boundary, key: str, parts: dict[str, bytes]) -> None:
    """A record with the fingerprint that release 0.1 has stored: of all arguments, by their canonical forms."""
    with boundary.entrypoint.open(key, operation="pay", fingerprint=of_parts(parts).plain) as claim:
        claim.result = "by 0.1"


# ---------------------------------------------------------------- over a deployment


def test_a_retry_over_a_deployment_that_adds_a_parameter_is_answered(once: Guarding) -> None:
    """And so is one that still meets the release before; what differs is refused."""

    @once
    def before(key: str, amount: int) -> str:
        return "before"

    @once
    def after(key: str, amount: int, currency: str = "EUR", note: str | None = None) -> str:
        return "after"

    assert [before("1", 5), after("1", 5), after("1", 5, "EUR", note=None)] == ["before"] * 3
    assert [after("2", 5), before("2", 5), after("2", 5, currency="EUR")] == ["after"] * 3
    for call, differing in ((partial(after, "1", 5, "USD"), "currency"), (partial(after, "2", 6), "amount")):
        with pytest.raises(KeyReused) as caught:
            call()
        assert caught.value.differing == (differing,)
    assert after("3", 5, "USD") == "after"
    with pytest.raises(KeyReused, match="currency"):
        before("3", 5)


def test_a_deployment_that_changes_a_default_does_not_answer_for_the_old_one(once: Guarding) -> None:
    @once
    def before(key: str, currency: str = "EUR") -> str:
        return "EUR"

    @once
    def after(key: str, currency: str = "USD") -> str:
        return "USD"

    assert before("1") == "EUR"
    with pytest.raises(KeyReused, match="currency"):
        after("1")
    assert after("1", currency="EUR") == "EUR"


def test_a_default_without_a_canonical_form_is_left_out(once: Guarding) -> None:
    nothing = object()

    @once
    def pay(key: str, amount: int, session: object = nothing) -> str:
        return "paid"

    assert [pay("1", 5), pay("1", 5)] == ["paid"] * 2


def test_a_field_that_is_added_to_a_payload_is_left_out_at_its_default(once: Guarding) -> None:
    @dataclass
    class Order:
        amount: int

    @dataclass
    class Longer:
        amount: int
        note: str | None = None
        lines: list[str] = field(default_factory=list)

    class Model(pydantic.BaseModel):
        amount: int
        note: str | None = None
        lines: list[str] = pydantic.Field(default_factory=list)

    @once
    def pay(key: str, order: Any) -> str:
        return type(order).__name__

    assert [pay("1", one) for one in (Order(5), Longer(5), Model(amount=5), {"amount": 5})] == ["Order"] * 4
    assert [pay("2", one) for one in (Model(amount=5, lines=[]), Order(5), Longer(5))] == ["Model"] * 3
    for other in (Longer(5, "now"), Longer(5, None, ["x"]), Model(amount=5, note="now"), Longer(6)):
        with pytest.raises(KeyReused):
            pay("1", other)


def test_payloads_that_each_have_a_default_of_their_own_are_two(once: Guarding) -> None:
    @dataclass
    class Refund:
        amount: int
        reason: str = ""

    @dataclass
    class Transfer:
        amount: int
        iban: str = ""

    @once
    def pay(key: str, order: Any = None) -> str:
        return "paid"

    pairs: list[tuple[Any, Any]] = [(Refund(5), Transfer(5)), (None, Refund(0)), ({}, Refund(0))]
    for number, (one, other) in enumerate(pairs):
        assert pay(str(number), one) == "paid"
        with pytest.raises(KeyReused):
            pay(str(number), other)


def test_records_of_0_1_are_answered_and_refused(boundary: Boundary, once: Guarding) -> None:
    @once
    def pay(key: str, amount: int, currency: str = "EUR", note: str | None = None) -> str:
        return "again"

    claimed_by_0_1(boundary, "1", {"key": b"s1:1", "amount": b"i1:5", "currency": b"s3:EUR", "note": b"n0:"})
    claimed_by_0_1(boundary, "2", {"key": b"s1:2", "amount": b"i1:5"})  # and the deployment adds the others
    for key in ("1", "2"):
        assert [pay(key, 5), pay(key, 5, "EUR")] == ["by 0.1"] * 2
        for other in (partial(pay, key, 6), partial(pay, key, 5, "USD"), partial(pay, key, 5, note="x")):
            with pytest.raises(KeyReused):
                other()


def test_values_that_0_1_can_compare_are_stored_as_it_stored_them() -> None:
    """While processes of both releases are live, either answers for the other."""
    found = fingerprint.of_fields({"key": "1", "amount": 5}, {"currency": "EUR"})
    assert (found.plain, found.older) == (of_parts({"key": b"s1:1", "amount": b"i1:5"}).plain, None)


# ---------------------------------------------------------------- None


@each_row("payload", ["coupon", lambda coupon: coupon], ids=["path", "callable"])
def test_none_is_a_payload_as_any_other(boundary: Boundary, payload: Any) -> None:
    @boundary.once(key="order", payload=payload)
    def place(order: str, coupon: str | None) -> str:
        return f"with {coupon}"

    assert [place("1", "HALF"), place("2", None), place("2", None)] == ["with HALF", "with None", "with None"]
    for order, coupon in (("1", None), ("2", "HALF")):
        with pytest.raises(KeyReused):
            place(order, coupon)


def test_so_it_is_of_a_claim_which_without_a_payload_checks_nothing(boundary: Boundary) -> None:
    for key, payload in (("1", "HALF"), ("2", None)):
        with boundary.claim(key, payload=payload) as claim:
            claim.result = payload
        with pytest.raises(KeyReused), boundary.claim(key, payload="other"):
            pytest.fail("another payload")
        with boundary.claim(key) as claim:
            assert claim.replayed
    with pytest.raises(KeyReused), boundary.claim("1", payload=None):
        pytest.fail("another payload")


# ---------------------------------------------------------------- models


class Method(pydantic.BaseModel):
    kind: str = "none"


class Card(Method):
    number: str


class Pay(pydantic.BaseModel):
    method: Method
    total: float = 0.0
    role: str = pydantic.Field(default="guest", exclude=True)

    @pydantic.field_serializer("total")
    def rounded(self, total: float) -> int:
        return round(total)


class Loose(pydantic.BaseModel, extra="allow"):
    pass


class Numbers(pydantic.RootModel[list[Method]]):
    pass


CARDS = Card(number="4242"), Card(number="1881")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Pay(method=CARDS[0]), Pay(method=CARDS[1])),
        (Pay(method=CARDS[0]), Pay(method=Method())),
        (Pay(method=Method(), total=1.2), Pay(method=Method(), total=1.4)),
        (Pay(method=Method(), role="admin"), Pay(method=Method())),
        (Numbers([CARDS[0]]), Numbers([CARDS[1]])),
        (Loose(a=1), Loose(a=2)),  # type: ignore[call-arg]
        (Loose(a=1), Loose()),  # type: ignore[call-arg]
        ([Pay(method=CARDS[0])], [Pay(method=CARDS[1])]),
        ({"p": {"q": Pay(method=CARDS[0])}}, {"p": {"q": Pay(method=CARDS[1])}}),
    ],
    ids=["subclass", "base", "rounded", "excluded", "root", "extra", "no extra", "in a list", "deep"],
)
def test_models_that_dump_the_same_are_two_payloads(once: Guarding, one: Any, other: Any) -> None:
    @once
    def pay(key: str, payload: Any) -> str:
        return "paid"

    for key, first, second in (("1", one, other), ("2", other, one)):
        assert [pay(key, first), pay(key, first)] == ["paid"] * 2
        with pytest.raises(KeyReused):
            pay(key, second)


def test_models_of_0_1_are_compared_as_it_counted_them(boundary: Boundary, once: Guarding) -> None:
    @once
    def pay(key: str, order: Pay) -> str:
        return "again"

    method = b"D17:14:s4:kinds4:none"
    parts = {"key": b"s1:1", "order.method": method, "order.total": b"i1:1"}
    claimed_by_0_1(boundary, "1", parts)
    assert pay("1", Pay(method=CARDS[0], total=1.2)) == "by 0.1"  # which it dumped without number and role
    with pytest.raises(KeyReused) as caught:
        pay("1", Pay(method=Card(kind="card", number="4242"), total=1))
    assert caught.value.differing == ("order.method",)
    assert pay("2", Pay(method=CARDS[0], total=1.2)) == "again"
    with pytest.raises(KeyReused):
        pay("2", Pay(method=CARDS[1], total=1.2))


def test_a_field_that_cannot_be_a_payload_counts_as_it_is_dumped(once: Guarding) -> None:
    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name

    class Job(pydantic.BaseModel, arbitrary_types_allowed=True):
        handle: Handle
        session: Handle = pydantic.Field(exclude=True)

        @pydantic.field_serializer("handle")
        def named(self, handle: Handle) -> str:
            return handle.name

    @once
    def run(key: str, job: Job) -> str:
        return "ran"

    for session in "ab":
        assert run("1", Job(handle=Handle("x"), session=Handle(session))) == "ran"
    with pytest.raises(KeyReused, match=r"job\.handle"):
        run("1", Job(handle=Handle("y"), session=Handle("a")))


def test_amounts_compare_by_their_exact_value(once: Guarding, tmp_path: Path) -> None:
    class Amount(pydantic.BaseModel):
        value: Decimal

    @once
    def pay(key: str, amount: Amount) -> str:
        return "paid"

    assert [pay("1", Amount(value=Decimal(text))) for text in ("1.0", "1.00", "1")] == ["paid"] * 3
    with pytest.raises(KeyReused):
        pay("1", Amount(value=Decimal("1.001")))
