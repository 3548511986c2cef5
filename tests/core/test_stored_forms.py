"""Stored forms that later versions compare: these bytes stay as they are for ever, or retries mismatch."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from time import tzset
from typing import Any
from uuid import UUID

import pydantic
import pytest

from retrysafe.protocol import canonical, fingerprint, quotas
from tests.tables import each_row


def of_payload(value: Any) -> bytes:
    return fingerprint.of_payload(value).plain


class Colour(Enum):
    RED = "red"


class Line(pydantic.BaseModel):
    sku: str
    count: int


class Lines(pydantic.RootModel[list[int]]):
    pass


@each_row(
    ("value", "form"),
    [
        (None, b"n0:"),
        (True, b"b1:1"),
        (-255, b"i3:-ff"),
        (0.5, b"f3:0.5"),
        ("é", b"s2:\xc3\xa9"),
        (b"\x00y", b"y2:\x00y"),
        (Decimal("-120.50"), b"m8:-1205e-1"),
        (Decimal(120), b"m4:12e1"),
        (Decimal("0.00"), b"m1:0"),
        (UUID(int=1), b"u16:" + bytes(15) + b"\x01"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), b"t26:2026-01-02T03:04:05.000006"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2))), b"t25:2026-01-02T01:04:00+00:00"),
        (date(2026, 1, 2), b"d10:2026-01-02"),
        (time(3, 4), b"c8:03:04:00"),
        (timedelta(days=1, seconds=2, microseconds=3), b"p5:1,2,3"),
        (Colour.RED, b"e6:s3:red"),
        ((1, "x"), b"L8:i1:1s1:x"),
        (frozenset({2, 1}), b"S8:i1:1i1:2"),
        ({"b": [1, 2], "a": {3}}, b"D32:11:s1:aS4:i1:315:s1:bL8:i1:1i1:2"),
        (Line(sku="x", count=2), b"D28:10:s3:skus1:x12:s5:counti1:2"),
        (Lines([1, 2]), b"L8:i1:1i1:2"),
    ],
)
def test_the_canonical_form_of_values(value: Any, form: bytes) -> None:
    assert canonical.of_value(value) == form


def test_an_instant_has_one_form_wherever_its_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    instant = datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2)))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        tzset()
        found = canonical.of_value(instant)
    tzset()
    assert found == b"t25:2026-01-02T01:04:00+00:00"


def test_the_canonical_form_of_json() -> None:
    assert canonical.of_json(b'{"b": [1.50, true, null], "a": "x"}') == b"jD36:23:s1:bL15:m5:15e-1b1:1n0:8:s1:as1:x"


@each_row(
    ("payload", "stored"),
    [
        (
            {"amount": 5, "to-whom": {"name": "x"}},
            (
                "010006616d6f756e749c1ce89d1a7a01934019451bd9fd1493976a2ed31ee4cf8cb5109f422c8702c4"
                "000c746f2d77686f6d2e6e616d65b8b96a3e73906111b7ccb81d4b8174755d8f3a67990799aa09b152eca323d196"
            ),
        ),
        ([1, 2], "0100077061796c6f616461c75a1a45b1971f3f67fe559b4a62652366ac3bd7fd055b072caadea43bb759"),
    ],
    ids=["fields", "a whole"],
)
def test_fingerprints(payload: Any, stored: str) -> None:
    assert of_payload(payload).hex() == stored


def test_the_fields_of_a_model_are_parts() -> None:
    assert fingerprint.names(of_payload(Line(sku="x", count=2))) == ("count", "sku")
    given = fingerprint.of_payload({"sku": "x", "count": 2})
    assert fingerprint.Secrets().agree(of_payload(Line(sku="x", count=2)), given, b"")


def test_holders_of_quotas() -> None:
    assert quotas.holder("shop", "ann").hex() == "6dd6c313107581f596533840e81e5af3"
