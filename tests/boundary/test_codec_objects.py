"""Objects in results: a retry gets exactly what the first caller got, or both are told that it cannot be stored."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Flag, IntFlag
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AliasChoices,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyAddress,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)

from retrysafe import Boundary, JSONCodec, ResultNotEncodable, ResultUnreadable, StoredFailure, StoredResult
from retrysafe.claims.codec import MEDIA_TYPE, VERSION
from retrysafe.claims.differences import difference
from tests.tables import each_row

CODEC = JSONCodec()
BERLIN = ZoneInfo("Europe/Berlin")


class Aliased(BaseModel):
    amount: int = Field(0, serialization_alias="amountCents")
    note: str = Field("", validation_alias=AliasChoices("remark", "comment"))
    key: int = Field(0, alias="Key")


class Nesting(BaseModel):
    inner: Aliased
    more: list[Aliased] = []


class Enveloped(BaseModel):
    """Reads what its service sends, by the names that stand there."""

    number: int = Field(alias="no")

    @model_validator(mode="before")
    @classmethod
    def unpack(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"no": data["no"]}


class Rich(BaseModel):
    model_config = ConfigDict(extra="allow")
    at: datetime
    url: AnyUrl
    address: IPvAnyAddress
    path: Path
    tags: set[str]
    by_number: dict[int, Decimal]
    queue: deque[int]
    _seen: int = PrivateAttr(default=0)

    @computed_field  # type: ignore[prop-decorator]
    @functools.cached_property
    def size(self) -> int:
        return len(self.tags)


Numbers = RootModel[list[int]]


@dataclass
class Gross:
    total: float
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = round(self.total * 1.2, 2)


@dataclass
class Taxed:
    net: Decimal
    gross: Decimal = field(init=False)
    count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.gross = self.net * 2


@dataclass
class Counted(Taxed):
    unit: str = "EUR"


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name + "!")


@dataclass(eq=False, frozen=True)
class Identity:
    number: int


class Right(Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


class Bits(IntFlag):
    A = 1
    B = 2


class Here:
    @dataclass
    class Receipt:
        total: int


class There:
    @dataclass
    class Receipt:
        total: int


Here.Receipt.__qualname__ = There.Receipt.__qualname__ = "Receipt"
There.Receipt.__module__ = "elsewhere"


def rich() -> Rich:
    model = Rich(
        at=datetime(2026, 1, 2, tzinfo=UTC),
        url=AnyUrl("https://example.com/a"),
        address="192.0.2.1",  # type: ignore[arg-type]
        path=Path("/tmp/x"),
        tags={"b", "a", "c"},
        by_number={1: Decimal("1.10")},
        queue=deque([1, 2]),
        more=["kept", None, 1.5],  # type: ignore[call-arg]
    )
    assert model.size == 3
    return model


def kind_of(value: object) -> str:
    """The name of a case, the same in every process of a run: the text of a set, or of an object, is not."""
    return getattr(value, "__name__", type(value).__name__)


@each_row(
    ("value", "annotation"),
    [
        (Aliased(amount=500, remark="r", Key=3), Aliased),  # type: ignore[call-arg]
        (Nesting(inner=Aliased(amount=5), more=[Aliased(comment="c")]), Nesting),  # type: ignore[call-arg]
        (Enveloped(no=7), Enveloped),
        (rich(), Rich),
        (Numbers([1, 2]), Numbers),
        (Gross(10), Gross),
        (Taxed(Decimal("1.50")), Taxed),
        (Counted(Decimal(2), "USD"), Counted),
        (Slotted("a"), Slotted),
        ({Identity(1), Identity(1), Identity(2)}, set[Identity]),
        (Right.READ, Right),
        (Right.BOTH, Right),
        (Right(0), Right),
        (Bits.A | Bits.B, Bits),
        (Here.Receipt(1), Here.Receipt | There.Receipt),
        (There.Receipt(1), Here.Receipt | There.Receipt),
        ([There.Receipt(1)], list[Here.Receipt] | list[There.Receipt]),
        ((1, There.Receipt(1)), tuple[Here.Receipt] | tuple[int, There.Receipt]),
        ({"a": [Gross(1)]}, dict[str, int] | dict[str, list[Gross]]),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), None),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), None),
        (datetime(2026, 10, 25, 2, 30, fold=1), None),
        (time(2, 30, tzinfo=BERLIN), None),
        (time(2, 30, fold=1, tzinfo=timezone(timedelta(hours=1))), None),
    ],
    ids=kind_of,
)
def test_comes_back_exactly(value: Any, annotation: Any) -> None:
    decoded = CODEC.decode(CODEC.encode(value, annotation), annotation)
    assert difference(value, decoded) is None
    assert repr(decoded) == repr(value) or isinstance(value, set | Rich)


class Token(BaseModel):
    access: SecretStr


class Method(BaseModel):
    kind: str


class Card(Method):
    last4: str


class Payment(BaseModel):
    method: Method


class Hiding(BaseModel):
    id: int
    role: str = Field("guest", exclude=True)


class Masking(BaseModel):
    card: str

    @field_serializer("card")
    def masked(self, card: str) -> str:
        return "***" + card[-4:]


class Anything(BaseModel):
    value: Any


class Adding(BaseModel):
    total: int

    @field_validator("total")
    @classmethod
    def add(cls, total: int) -> int:
        return total + 1


class Private(BaseModel):
    _secret: str = PrivateAttr(default="")


class Locked(BaseModel):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


@dataclass
class Remembering:
    seed: InitVar[int]
    value: int = 0


@dataclass
class Base:
    number: int


@dataclass
class Derived(Base):
    more: int = 0


@dataclass
class Holder:
    base: Base


@dataclass
class Growing:
    lines: list[int]

    def __post_init__(self) -> None:
        self.lines.append(0)


@dataclass
class Liar:
    """Says that it is equal to everything."""

    at: datetime | None = None

    def __post_init__(self) -> None:
        self.note = "" if self.at is None else "known"

    def __eq__(self, other: object) -> bool:
        return True


@dataclass
class Doubling:
    number: int

    def __post_init__(self) -> None:
        self.twice = self.number * 2
        self.number += 1


class Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None


def with_private() -> Private:
    model = Private()
    model._secret = "s"
    return model


def with_extra_attribute() -> Liar:
    liar = Liar()
    liar.note = "changed"
    return liar


@each_row(
    ("value", "annotation", "complaint"),
    [
        (Token(access=SecretStr("s")), Token, r"Token\.access"),
        (Payment(method=Card(kind="c", last4="4242")), Payment, r"\.method is a Card .* a Method"),
        (Hiding(id=1, role="admin"), Hiding, r"\.role"),
        (Masking(card="4242424242424242"), Masking, r"\.card"),
        (Anything(value=Decimal("1.1")), Anything, r"\.value is a Decimal .* a str"),
        (Anything(value=(1, 2)), Anything, r"\.value is a tuple .* a list"),
        (Anything(value={1: 2}), Anything, r"\.value would come back with other keys"),
        (Adding(total=1), Adding, r"\.total"),
        (Aliased.model_construct(amount=True), Aliased, r"\.amount is a bool .* a int"),
        (with_private(), Private, r"_secret"),
        (Locked(), Locked, r"lock"),
        (rich().model_copy(update={"at": datetime(2026, 7, 1, tzinfo=BERLIN)}), Rich, "another time zone"),
        (rich().model_copy(update={"at": datetime(2026, 7, 1, fold=1)}), Rich, r"\.at"),
        (rich().model_copy(update={"queue": [1, 2]}), Rich, r"\.queue"),
        (rich().model_copy(update={"path": "x"}), Rich, r"\.path"),
        (Remembering(1), Remembering, "seed"),
        (Holder(Derived(1)), Holder, "names exactly that class"),
        (Growing([]), Growing, r"\.lines has 1 members .* with 2"),
        (with_extra_attribute(), Liar, r"\.note"),
        (Bits(9), Bits, "Bits"),
        (Doubling(1), Doubling, r"\.twice"),
        (datetime(2026, 1, 1, tzinfo=Nowhere()), None, "time zone"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_results_that_would_come_back_different_are_refused(value: Any, annotation: Any, complaint: str) -> None:
    with pytest.raises(ResultNotEncodable, match=complaint):
        CODEC.encode(value, annotation)


def test_two_classes_that_nothing_tells_apart_are_refused() -> None:
    def make() -> type:
        @dataclass
        class Receipt:
            total: int

        return Receipt

    one, other = make(), make()
    with pytest.raises(ResultNotEncodable, match="names two classes"):
        CODEC.encode(other(1), one | other)


# ------------------------------------------------------------ what an earlier version, or an earlier class, has stored


class Receipt(BaseModel):
    amount: int = 0
    tags: frozenset[str] = frozenset()
    parts: list[Aliased] = []


@dataclass
class Line:
    amount: int = 0


@each_row(
    ("body", "annotation", "value"),
    [
        (b'{"$":["object","Receipt",{"amount":5}]}', Receipt, Receipt(amount=5)),
        (b'{"$":["object","Receipt",{"tags":["z","a","m"]}]}', Receipt, Receipt(tags=frozenset("zam"))),
        (b'{"$":["model","Receipt",{"parts":[{"amount":1}]}]}', Receipt, Receipt(parts=[Aliased(amount=1)])),
        (b'{"$":["object","Aliased",{"Key":5}]}', Aliased, Aliased(Key=5)),
        (b'{"$":["object","Gross",{"total":12.0}]}', Gross, Gross(10)),
        (b'{"$":["object","Right","READ"]}', Right, Right.READ),
        (b'{"$":["object","Line",{}]}', Line, Line()),
    ],
    ids=kind_of,
)
def test_old_records_are_read(body: bytes, annotation: Any, value: Any) -> None:
    assert difference(value, CODEC.decode(StoredResult(body, MEDIA_TYPE, VERSION), annotation)) is None


@each_row(
    ("body", "annotation", "complaint"),
    [
        pytest.param(b'{"$":["object","Receipt",{"total":500}]}', Receipt, r"\.total is not known", id="renamed"),
        (b'{"$":["model","Receipt",{"total":500}]}', Receipt, r"\.total is not known"),
        (b'{"$":["model","Receipt",{"parts":[{"sum":1}]}]}', Receipt, r"\.parts\[0\]\.sum is not known"),
        (b'{"$":["model","Receipt",{"amount":"5"}]}', Receipt, r"\.amount is read as something else"),
        (b'{"$":["model","Receipt",{"tags":["a","a"]}]}', Receipt, "number of members"),
        (b'{"$":["object","Aliased",{"amountCents":500}]}', Aliased, r"\.amountCents is read as something else"),
        (b'{"$":["object","Line",{"total":500}]}', Line, "no field 'total'"),
        (b'{"$":["object","Receipt",{"total":1}]}', Here.Receipt | There.Receipt, "names two of"),
        (b'{"$":["object","Right","GONE"]}', Right, "GONE"),
        (b'{"$":["object","Right",["READ","GONE"]]}', Right, "GONE"),
        (b'{"$":["datetime",["2026-01-01",0,"Nowhere/There"]]}', None, "Nowhere"),
    ],
)
def test_fields_that_the_class_of_today_would_lose_are_refused(body: bytes, annotation: Any, complaint: str) -> None:
    with pytest.raises(ResultUnreadable, match=complaint):
        CODEC.decode(StoredResult(body, MEDIA_TYPE, VERSION), annotation)


class Raising(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def never(cls, number: int) -> int:
        raise ArithmeticError("not today") if number > 1 else LookupError("nor then")


def test_any_exception_of_a_validator_is_a_typed_error() -> None:
    for number in (1, 2):
        stored = StoredResult(b'{"$":["model","Raising",{"number":%d}]}' % number, MEDIA_TYPE, VERSION)
        with pytest.raises(ResultUnreadable, match=r"not today|nor then"):
            CODEC.decode(stored, Raising)


# ------------------------------------------------------------ at a boundary


LOSSY: list[Callable[[str], BaseModel]] = [
    lambda key: Token(access=SecretStr(key)),
    lambda key: Payment(method=Card(kind="c", last4=key)),
    lambda key: Hiding(id=1, role=key),
]


@each_row("make", LOSSY)
@each_row("effects", ["transactional", "keyed", "external"])
@each_row("colour", ["sync", "async"])
def test_nobody_gets_a_result_that_a_retry_would_not_get(
    tmp_path: Path, make: Callable[[str], BaseModel], effects: Any, colour: str
) -> None:
    runs = []
    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", effects=effects)

    def run(key: str) -> Any:
        runs.append(key)
        return make(key)

    async def arun(key: str) -> Any:
        return run(key)

    run.__annotations__["return"] = arun.__annotations__["return"] = type(make("k"))
    if colour == "sync":
        call = boundary.once(key="key")(run)
    else:
        once = boundary.once(key="key")(arun)

        def call(key: str) -> Any:
            return asyncio.run(once(key))

    for _ in range(2):
        with pytest.raises(ResultNotEncodable):
            call("k")
    assert len(runs) == (2 if effects == "transactional" else 1)


class Tuples:
    """A codec that makes lists of tuples, as MessagePack does."""

    def __init__(self) -> None:
        self.broken = False

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        return CODEC.encode(list(value), None)

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        if self.broken:
            raise KeyError("what")
        return CODEC.decode(stored, None)


def test_a_codec_of_the_users_is_held_to_its_word() -> None:
    codec = Tuples()
    boundary = Boundary("x", store="memory://", codec=codec)
    with boundary.claim("a") as claim:
        claim.result = [1, 2]
    with boundary.claim("a") as again:
        assert again.result == [1, 2]
    with (
        pytest.raises(ResultNotEncodable, match="is a tuple and would come back as a list"),
        boundary.claim("b") as claim,
    ):
        claim.result = (1, 2)
    codec.broken = True
    with pytest.raises(ResultUnreadable, match="KeyError"), boundary.claim("a"):
        pytest.fail("it was run again")


class Declined(Exception):
    def __init__(self, data: Any) -> None:
        super().__init__("declined")
        self.data = data


@each_row("data", [{"code": 7}, (1, Decimal("1.0")), object(), OrderedDict(a=1), float("nan")], ids=kind_of)
def test_the_first_caller_gets_the_failure_that_retries_get(data: Any) -> None:
    boundary = Boundary("x", store="memory://")

    @boundary.once(key="key")
    def run(key: str) -> None:
        from retrysafe import current

        current().fail(Declined(data))

    got = []
    for _ in range(2):
        with pytest.raises(StoredFailure) as caught:
            run("k")
        got.append((caught.value.type, caught.value.message, caught.value.data))
    assert difference(got[0], got[1]) is None


@each_row(
    ("one", "other", "where"),
    [
        (1, 1.0, "int .* float"),
        (1, True, "int .* bool"),
        (0.0, -0.0, "another value"),
        (Decimal("1.0"), Decimal("1.00"), "another value"),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "time zone"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))), "time zone"),
        (datetime(2026, 1, 1), date(2026, 1, 1), "datetime .* date"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "order"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, r"\['a'\]\[1\]\['b'\]"),
        ({1}, {True}, "another member"),
        ({1, 2}, {1}, "members"),
        ([1], [1, 2], "members"),
        (Liar(), Liar(datetime(2026, 1, 1)), r"\.at"),
        (Path("a"), Path("b"), "another value"),
        (deque([1], 2), deque([1], 3), "another value"),
        (OrderedDict(a=1), OrderedDict(a=2), "another value"),
        (complex(1, 0.0), complex(1, -0.0), "another value"),
    ],
    ids=kind_of,
)
def test_differences_are_found(one: Any, other: Any, where: str) -> None:
    import re

    assert re.search(where, difference(one, other) or "")
    assert difference(one, one) is None
