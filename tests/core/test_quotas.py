"""Quotas: what is accepted, who is counted together, and when there is room again."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import ConfigurationError, Quota
from retrysafe.protocol.quotas import holder, judge, room_again
from retrysafe.protocol.records import Allowance, QuotaRefusal
from tests.tables import each_row

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
BOTH = Allowance(b"", 3, 60 * SECOND, 5)


@each_row(
    ("rate", "expected"),
    [("100/1m", (100, 60)), ("1/24h", (1, 86400)), (" 5 / 0.5s ", (5, 0.5)), ("7/90s", (7, 90))],
)
def test_a_rate_is_a_number_in_a_period(rate: str, expected: tuple[int, float]) -> None:
    quota = Quota(rate=rate)
    assert (quota.rate, quota.period / 1e6) == expected
    assert quota.outstanding is None


@each_row(
    ("given", "said"),
    [
        ({}, "needs a limit"),
        *(({"rate": rate}, "rate=") for rate in ("100", "100/m", "/1m", "0/1m", "-1/1m", "1.5/1m", "100/0s", 100)),
        *(({"outstanding": count}, "outstanding=") for count in (0, -1, 1.5, "10", True, 1 << 31)),
    ],
)
def test_anything_else_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Quota(**given)


def test_a_quota_shows_its_limits() -> None:
    assert repr(Quota(rate="100/1m", outstanding=5)) == "Quota(rate='100/60s', outstanding=5)"
    assert repr(Quota(outstanding=5)) == "Quota(outstanding=5)"
    assert repr(Quota(rate="100/1m")) == "Quota(rate='100/60s')"
    assert (Quota(outstanding=5).rate, Quota(outstanding=5).period) == (None, 0)


def test_boundary_and_scope_are_counted_apart() -> None:
    holders = {holder(*who) for who in (("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"), ("a", ""))}
    assert len(holders) == 5
    assert {len(one) for one in holders} == {16}
    assert Quota(outstanding=1).allowance("a", "b").holder == holder("a", "b")


@each_row(
    ("filling", "kept", "forgotten", "expected"),
    [
        (None, 0, None, None),
        (NOW - 60 * SECOND, 4, NOW + SECOND, None),
        (NOW - 20 * SECOND, 0, None, QuotaRefusal("rate", 40.0)),
        (NOW - 60 * SECOND + 1, 0, None, QuotaRefusal("rate", 1.0)),
        (None, 5, NOW + 90 * SECOND, QuotaRefusal("outstanding", 90.0)),
        (None, 7, NOW, QuotaRefusal("outstanding", 1.0)),
        (None, 5, None, QuotaRefusal("outstanding", 60.0)),
        (NOW - 20 * SECOND, 5, NOW + 90 * SECOND, QuotaRefusal("outstanding", 90.0)),
        (NOW - 20 * SECOND, 5, NOW + 9 * SECOND, QuotaRefusal("rate", 40.0)),
    ],
)
def test_the_later_of_both_limits_says_when_to_ask_again(
    filling: int | None, kept: int, forgotten: int | None, expected: QuotaRefusal | None
) -> None:
    assert judge(BOTH, NOW, filling, kept, forgotten) == expected


def test_a_limit_that_is_not_set_refuses_nothing() -> None:
    assert judge(BOTH._replace(rate=None), NOW, NOW, 4, None) is None
    assert judge(BOTH._replace(outstanding=None), NOW, None, 1000, None) is None


def test_room_that_came_meanwhile_is_asked_for_again_soon() -> None:
    assert room_again(BOTH) == QuotaRefusal("rate", 1.0)
    assert room_again(BOTH._replace(rate=None)) == QuotaRefusal("outstanding", 1.0)
