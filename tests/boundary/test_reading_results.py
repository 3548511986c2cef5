"""What a replay raises whose stored result a codec of the user's cannot read, or that no attempt could store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Boundary, Event, ResultNotEncodable, ResultUnreadable, StoredResult, StoreUnavailable


class Numbers:
    """A codec for numbers, which reads anything: nothing stored is null, as many programs have it."""

    def __init__(self) -> None:
        self.broken: Callable[[], BaseException] | None = None

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        if not isinstance(value, int):
            raise ResultNotEncodable("only numbers")
        return StoredResult(json.dumps(value).encode(), "application/json", 1)

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        if self.broken is not None:
            raise self.broken()
        return json.loads(stored.body or b"null")


@pytest.fixture
def codec() -> Numbers:
    return Numbers()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def boundary(codec: Numbers, told: list[Event]) -> Boundary[None]:
    return Boundary("numbers", store="memory://", codec=codec, observers=[told.append])


def settled(boundary: Boundary[None]) -> None:
    with boundary.claim("k") as claim:
        claim.result = 7


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "its own type": (lambda: ResultUnreadable("written by a later version"), "written by a later version"),
    "what older codecs raise": (lambda: ResultNotEncodable("written by a later version"), "written by a later version"),
    "a bug": (lambda: KeyError("number"), "The codec failed: KeyError('number')"),
    "another of ours": (lambda: StoreUnavailable("no bucket"), "The codec failed: StoreUnavailable("),
}


@pytest.mark.parametrize(("broken", "complaint"), ERRORS.values(), ids=ERRORS)
def test_whatever_a_codec_raises_on_a_replay_is_one_error(
    broken: Callable[[], BaseException], complaint: str, boundary: Boundary[None], codec: Numbers, told: list[Event]
) -> None:
    settled(boundary)
    raised = broken()
    codec.broken = lambda: raised
    with pytest.raises(ResultUnreadable) as caught, boundary.claim("k"):
        pytest.fail("the work ran again")
    assert caught.value.detail.startswith(complaint)
    assert raised in (caught.value, caught.value.__cause__), "what the codec raised is the cause"
    assert caught.value.boundary == "numbers"
    (event,) = [one for one in told if one.name == "unreadable"]
    assert event.fields["reason"] == caught.value.detail
    codec.broken = None
    with boundary.claim("k") as again:
        assert (again.replayed, again.result) == (True, 7), "who can read it is answered"


def test_what_ends_the_process_is_not_an_unreadable_result(boundary: Boundary[None], codec: Numbers) -> None:
    settled(boundary)
    codec.broken = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), boundary.claim("k"):
        pytest.fail("the work ran again")


def test_a_withheld_result_is_read_by_no_codec(boundary: Boundary[None], told: list[Event]) -> None:
    """A codec that makes something of nothing would give retries an answer that no attempt had."""
    with pytest.raises(ResultNotEncodable, match="only numbers"), boundary.claim("k") as claim:
        claim.result = "seven"
    with pytest.raises(ResultNotEncodable, match="withheld"), boundary.claim("k"):
        pytest.fail("the work ran again")
    assert [one.name for one in told if one.name == "unreadable"] == [], "there is no stored answer to read"


def test_a_codec_that_cannot_read_what_it_wrote_stores_nothing(boundary: Boundary[None], codec: Numbers) -> None:
    codec.broken = lambda: ResultUnreadable("no such version")
    with (
        pytest.raises(ResultNotEncodable, match="The codec failed to read what it had encoded: no such version"),
        boundary.claim("k") as claim,
    ):
        claim.result = 7


def test_a_codec_that_gives_no_body_is_refused() -> None:
    """None in its place stands for a result that was withheld."""

    class Bodiless(Numbers):
        def encode(self, value: Any, annotation: Any) -> StoredResult:
            return StoredResult(None, "application/json", 1)

    boundary = Boundary("bodiless", store="memory://", codec=Bodiless(), observers=())
    with pytest.raises(ResultNotEncodable, match="The codec gave no body"), boundary.claim("k") as claim:
        claim.result = None
