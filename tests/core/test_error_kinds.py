"""Errors are counted by what went wrong, not by the ids in their texts."""

from __future__ import annotations

from retrysafe.messaging.error_kinds import by_kind, kind_of
from tests.tables import each_row


@each_row(
    ("error", "kind"),
    [
        ("ValueError: no 3", "ValueError: no #"),
        ("Http2Error: 10.0.0.7:5432 refused at 2026-11-22T10:11:12.5Z", "Http2Error: # refused at #T#Z"),
        ("KeyError: order 0190b6f2-7f3c-7d4e-8a55-0c1d2e3f4a5b", "KeyError: order #"),
        ("TypeError: <X object at 0x7F00ab> deadbeef01", "TypeError: <X object at #> #"),
        ("delivery tag 17 was refused", "delivery tag # was refused"),
        ("answered HTTP 404 after 12 ms", "answered HTTP 404 after # ms"),
        ("ValueError: a facade, effaced", "ValueError: a facade, effaced"),
    ],
)
def test_numbers_and_ids_do_not_make_a_kind(error: str, kind: str) -> None:
    assert kind_of(error) == kind_of(kind) == kind


def test_kinds_are_summed_and_the_most_frequent_come_first() -> None:
    counts = {("t", "x", "E: row 1"): 1, ("t", "x", "E: row 22"): 2, ("t", "y", "E: row 1"): 2, ("a", "x", "E"): 9}
    assert list(by_kind(counts).items()) == [
        (("a", "x", "E"), 9),
        (("t", "x", "E: row #"), 3),
        (("t", "y", "E: row 1"), 2),
    ]
