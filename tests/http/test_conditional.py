"""Preconditions, as RFC 9110 section 13 has them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.errors import ConfigurationError
from retrysafe.http.conditional import ETag, Unmet, Version, etag_of, evaluate, tags
from retrysafe.http.messages import Headers, Request
from tests.tables import each_row

V1, V2, WEAK = ETag("v1"), ETag("v2"), ETag("v1", weak=True)


def asked(method: str = "PUT", **headers: str | list[str]) -> Request:
    lines: list[tuple[bytes, bytes]] = []
    for name, values in headers.items():
        field = name.replace("_", "-").encode()
        lines += [(field, value.encode()) for value in ([values] if isinstance(values, str) else values)]
    found: Headers = tuple(lines)
    return Request(method, b"/orders/1", b"", found)


def status(request: Request, current: ETag | None, *, required: bool = False) -> int | None:
    unmet = evaluate(request, current, required=required)
    return None if unmet is None else unmet.status


@each_row(
    ("field", "current", "expected"),
    [
        ('"v1"', V1, None),
        ('"v0", "v1"', V1, None),
        (['"v0"', '"v1"'], V1, None),
        ("*", V1, None),
        ("*", None, 412),
        ('"v1"', None, 412),
        ('"v1"', V2, 412),
        ('W/"v1"', V1, 412),
        ('"v1"', WEAK, 412),
        ('W/"v1"', WEAK, 412),
        ("v1", V1, 412),
        ('"v1', V1, 412),
        ('"v1" "v2"', V1, 412),
        ("", V1, 412),
    ],
)
def test_if_match_is_compared_strongly_and_a_star_means_that_it_exists(
    field: str | list[str], current: ETag | None, expected: int | None
) -> None:
    assert status(asked(if_match=field), current) == expected


@each_row(
    ("method", "field", "current", "expected"),
    [
        ("PUT", "*", None, None),
        ("PUT", "*", V1, 412),
        ("PUT", '"v1"', V1, 412),
        ("PUT", 'W/"v1"', V1, 412),
        ("PUT", '"v2"', V1, None),
        ("PUT", "v2", V1, 412),
        ("PUT", '"v2', V1, 412),
        ("PUT", "v2", None, None),
        ("GET", "v1", V1, None),
        ("GET", '"v1"', V1, 304),
        ("HEAD", 'W/"v1"', V1, 304),
        ("GET", '"v0", "v1"', WEAK, 304),
        ("GET", '"v2"', V1, None),
        ("GET", "*", None, None),
    ],
)
def test_if_none_match_is_compared_weakly(method: str, field: str, current: ETag | None, expected: int | None) -> None:
    assert status(asked(method, if_none_match=field), current) == expected


def test_if_match_is_evaluated_first() -> None:
    assert status(asked("GET", if_match='"v2"', if_none_match='"v1"'), V1) == 412
    assert status(asked("GET", if_match='"v1"', if_none_match='"v1"'), V1) == 304


def test_a_required_precondition() -> None:
    assert status(asked(), V1, required=True) == 428
    assert status(asked(), V1) is None
    assert status(asked(if_match='"v1"'), V1, required=True) is None
    assert status(asked(if_none_match="*"), None, required=True) is None
    assert status(asked(), None, required=True) == 428
    assert status(asked("GET"), V1, required=True) is None


def test_to_name_a_version_that_is_not_there_is_no_leave_to_overwrite_what_is() -> None:
    assert status(asked(if_none_match='"v0"'), V1, required=True) == 428
    assert status(asked(if_none_match='"v0"'), V1) is None


@each_row("version", [ETag("17"), 17, "17"])
def test_the_current_version_is_a_tag_or_what_makes_one(version: Version) -> None:
    assert evaluate(asked(if_match='"17"'), version) is None
    assert evaluate(asked(if_match='"18"'), version) is not None


def test_answers_to_the_client() -> None:
    unmet = evaluate(asked(if_match='"v0"'), V1)
    assert unmet is not None
    body = json.loads(unmet.response.body or b"")
    assert (body["status"], body["title"]) == (412, "Precondition Failed")
    assert (b"etag", b'"v1"') in unmet.response.headers
    assert Unmet(304, "", V1).response == (304, ((b"etag", b'"v1"'),), b"")


def test_tags_of_versions_and_of_contents() -> None:
    assert str(etag_of(17)) == '"17"'
    assert etag_of(b"one") == etag_of(b"one") != etag_of(b"other")
    for nonsense in ('a"b', "a b", "a\n", "größe"):
        with pytest.raises(ConfigurationError):
            etag_of(nonsense)


OPAQUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='"'), max_size=8)


@given(st.lists(st.builds(ETag, OPAQUE, st.booleans()), max_size=5), st.sampled_from([", ", ",", " ,\t", ",,"]))
def test_every_list_of_tags_is_read_back(listed: list[ETag], comma: str) -> None:
    assert tags(comma.join(map(str, listed)).encode()) == listed
