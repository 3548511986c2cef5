"""The errors of a replay whose stored result a codec of the user's cannot read, or that no attempt could store."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, Event, ResultNotEncodable, ResultUnreadable, StoredResult, StoreUnavailable
from retrysafe.claims.encryption import Keyring
from retrysafe.claims.sealing import MEDIA_TYPE as ENCRYPTED
from tests.conftest import require
from tests.faults.helpers import unique
from tests.stores.harnesses import URLS
from tests.tables import each_row


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
def test_all_exceptions_of_a_codec_on_a_replay_are_one_error(
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


def test_the_end_of_the_process_is_not_an_unreadable_result(boundary: Boundary[None], codec: Numbers) -> None:
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


STRANGE: dict[str, tuple[Any, str]] = {
    "no body": (StoredResult(None, "application/json", 1), "The codec gave no body"),
    "bytes": (b"7", "no StoredResult, but a value of type bytes"),
    "a tuple": ((b"7", "application/json", 1), "no StoredResult, but a value of type tuple"),
    "nothing": (None, "no StoredResult, but a value of type NoneType"),
    "text": (StoredResult("7", "application/json", 1), "a body of type str"),  # type: ignore[arg-type]
    "a bytearray": (StoredResult(bytearray(b"7"), "a/b", 1), "a body of type bytearray"),  # type: ignore[arg-type]
    "no media type": (StoredResult(b"7", None, 1), "the media type None"),  # type: ignore[arg-type]
    "a media type with NUL": (StoredResult(b"7", "a\0b", 1), "the media type 'a"),
    "half a character": (StoredResult(b"7", "a\ud800", 1), "the media type 'a"),
    "a long media type": (StoredResult(b"7", "x" * 256, 1), "at most 255 characters"),
    "the media type of encrypted ones": (StoredResult(b"7", ENCRYPTED, 1), f"is not {ENCRYPTED}"),
    "no version": (StoredResult(b"7", "a/b", None), "the version None"),  # type: ignore[arg-type]
    "a version below 0": (StoredResult(b"7", "a/b", -1), "the version -1"),
    "a large version": (StoredResult(b"7", "a/b", 2**31), "the version 2147483648"),
    "a version with a fraction": (StoredResult(b"7", "a/b", 1.5), "the version 1.5"),  # type: ignore[arg-type]
}


@each_row("encrypts", [False, True], ids=["plain", "encrypted"])
@each_row(("made", "complaint"), STRANGE.values(), ids=STRANGE)
def test_a_result_that_no_store_could_keep_is_withheld(
    made: Any, complaint: str, encrypts: bool, tmp_path: Path
) -> None:
    """The effect has happened: the key must not stay with an attempt whose outcome its store has refused."""

    class Strange(Numbers):
        def encode(self, value: Any, annotation: Any) -> StoredResult:
            stored: StoredResult = made
            return stored

        def decode(self, stored: StoredResult, annotation: Any) -> Any:
            return 7

    keyring = Keyring({"a": Keyring.generate()}) if encrypts else None
    boundary = Boundary(
        "strange", store=f"sqlite:///{tmp_path}/x.db", codec=Strange(), encryption=keyring, observers=()
    )
    with closing(boundary):
        with pytest.raises(ResultNotEncodable) as refused, boundary.claim("k") as claim:
            claim.result = 7
        assert complaint in refused.value.detail
        with pytest.raises(ResultNotEncodable, match="withheld"), boundary.claim("k"):
            pytest.fail("the work ran again")


@pytest.fixture(params=URLS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    service, url_of = URLS[request.param]
    if service is not None:
        require(service)
    url: str = url_of(tmp_path)
    return url


@pytest.mark.parametrize(
    "stored", [StoredResult(b"", "x" * 255, 0), StoredResult(b"\0" * 9, 'a/b; c="d"', 2**31 - 1)], ids=["long", "high"]
)
def test_results_that_every_store_keeps_are_kept_as_they_are(stored: StoredResult, anywhere: str) -> None:
    found: list[StoredResult] = []

    class Whole(Numbers):
        def encode(self, value: Any, annotation: Any) -> StoredResult:
            return stored

        def decode(self, stored: StoredResult, annotation: Any) -> Any:
            found.append(stored)
            return 7

    with closing(Boundary(unique("whole"), store=anywhere, codec=Whole(), observers=())) as boundary:
        with boundary.claim("k") as claim:
            claim.result = 7
        with boundary.claim("k") as again:
            assert (again.replayed, again.result) == (True, 7)
    assert found == [stored, stored]
