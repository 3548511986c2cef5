"""Request bodies: held, limited, and hashed however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.http.bodies import Body, Multipart, hasher, without_boundary
from retrysafe.http.messages import Request, length_of
from retrysafe.http.policy import Policy
from retrysafe.http.problems import Refusal
from tests.tables import each_row


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request("POST", b"/", b"", headers)


PLAIN = Policy()


def body_of(chunks: list[bytes], policy: Policy = PLAIN, *headers: tuple[bytes, bytes]) -> Body:
    body = Body(request(*headers), policy)
    for chunk in chunks:
        body.add(chunk)
    return body


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(0, 60))
def test_r12_a_body_is_read_as_it_was_sent_in_memory_or_not(chunks: list[bytes], memory: int) -> None:
    body = body_of(chunks, Policy(body_memory=memory))
    whole = b"".join(chunks)
    assert b"".join(body.chunks()) == whole == b"".join(body.chunks()), "as often as it is asked for"
    assert body.whole == whole
    assert body.hash.digest() == body_of([whole]).hash.digest()
    body.close()


@pytest.mark.fault(66)
def test_r12_over_the_limit_is_refused_when_it_gets_there() -> None:
    body = body_of([b"x" * 10], Policy(body_limit=10))
    with pytest.raises(Refusal) as refused:
        body.add(b"x")
    assert refused.value.code == "request-too-large"


def test_r12_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    with pytest.raises(Refusal):
        body_of([], Policy(body_limit=10), (b"content-length", b"11"))
    body_of([], Policy(body_limit=10), (b"content-length", b"10"))
    with pytest.raises(Refusal):
        body_of([], Policy(body_limit=10), (b"content-length", b"9" * 5000))  # longer than Python reads


def test_a_length_is_digits_alone_however_many() -> None:
    lengths = {
        "0": 0,
        "17": 17,
        "0" * 5000 + "17": 17,
        "-1": None,
        "+1": None,
        "²": None,
        "٣": None,
        "1 ": None,
        "": None,
    }
    assert {text: length_of(text) for text in lengths} == lengths
    assert (length_of("9" * 5000) or 0) > 10**18


def form(boundary: bytes, *parts: bytes) -> bytes:
    head = b'Content-Disposition: form-data; name="f"\r\n\r\n'
    return b"".join(b"--" + boundary + b"\r\n" + head + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


def multipart(boundary: bytes, data: bytes, *cuts: int) -> bytes:
    hashed = hasher(request((b"content-type", b"multipart/form-data; boundary=" + boundary)))
    assert isinstance(hashed, Multipart)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        hashed.update(data[start:end])
    return hashed.digest()


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.lists(st.integers(0, 500), max_size=8))
def test_f4_a_fresh_boundary_gives_the_same_fingerprint_however_the_body_is_cut(
    parts: list[bytes], cuts: list[int]
) -> None:
    one, other = b"----aVeryRandomOne1", b"----anotherRandom22"
    assert multipart(one, form(one, *parts), *cuts) == multipart(other, form(other, *parts))


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_f4_other_parts_give_another_one(one: list[bytes], other: list[bytes]) -> None:
    same = multipart(b"bbbbbbbbbb", form(b"bbbbbbbbbb", *one)) == multipart(b"bbbbbbbbbb", form(b"bbbbbbbbbb", *other))
    assert same == (one == other)


@each_row(
    ("given_", "counted"),
    [
        (b"multipart/form-data; boundary=abc", b"multipart/form-data"),
        (b'Multipart/Form-Data;  Boundary="a b c"; charset=utf-8', b"Multipart/Form-Data; charset=utf-8"),
        (b"multipart/form-data; boundary=" + b"a" * 72, b"multipart/form-data"),
        (b"text/plain; boundary=abc", b"text/plain; boundary=abc"),
    ],
)
def test_f4_the_boundary_is_no_part_of_the_content_type_either(given_: bytes, counted: bytes) -> None:
    assert without_boundary(given_) == counted
