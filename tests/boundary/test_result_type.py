"""``claim(result_type=)`` does for a block what the return annotation does for a function."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

import pytest

from retrysafe import Boundary, Claim, ConfigurationError, ResultNotEncodable, ResultUnreadable


class Size(Enum):
    SMALL = 1


@dataclass
class Receipt:
    number: int
    amount: Decimal


RECEIPT = Receipt(7, Decimal("12.50"))


@pytest.fixture
def boundary() -> Boundary[None]:
    return Boundary("shop", store="memory://", effects="external", observers=())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Receipt, RECEIPT),
        (Size, Size.SMALL),
        (list[Receipt], [RECEIPT]),
        (Receipt | None, RECEIPT),
        (Receipt | None, None),
    ],
)
def test_what_the_block_sets_comes_back(boundary: Boundary[None], kind: type[object], value: object) -> None:
    for attempt in range(2):
        with boundary.claim("k", result_type=kind) as claim:
            assert claim.replayed == bool(attempt)
            if not claim.replayed:
                claim.result = value
        assert claim.result == value


def test_another_class_is_refused(boundary: Boundary[None]) -> None:
    with (
        pytest.raises(ResultNotEncodable, match="result_type="),
        boundary.claim("k", result_type=Size) as claim,
    ):
        claim.result = RECEIPT  # type: ignore[assignment]


def test_a_replay_that_names_no_type_is_refused(boundary: Boundary[None]) -> None:
    with boundary.claim("k", result_type=Receipt) as claim:
        claim.result = RECEIPT
    with (
        pytest.raises(ResultUnreadable, match="it is a Receipt, which the annotation None does not name"),
        boundary.claim("k"),
    ):
        pass


def test_a_person_resolves_with_the_same_type(boundary: Boundary[None]) -> None:
    with pytest.raises(ConnectionResetError), boundary.claim("k", result_type=Receipt):
        raise ConnectionResetError
    with pytest.raises(ConfigurationError, match="give result_type="):
        boundary.resolve("k", "completed", result=RECEIPT)
    assert boundary.resolve("k", "completed", result=RECEIPT, result_type=Receipt)
    with boundary.claim("k", result_type=Receipt) as claim:
        assert claim.replayed
    assert claim.result == RECEIPT


async def test_async(boundary: Boundary[None]) -> None:
    with pytest.raises(ConnectionResetError):
        async with boundary.claim("k", result_type=Receipt):
            raise ConnectionResetError
    assert await boundary.aresolve("k", "completed", result=RECEIPT, result_type=Receipt)
    async with boundary.claim("k", result_type=Receipt) as claim:
        assert claim.replayed
    assert claim.result == RECEIPT


def test_the_generic_classes_can_be_subscripted_when_annotations_are_evaluated() -> None:
    assert Claim[Receipt] != Claim[Receipt, None]
    assert Boundary[None]
