"""F: what makes two requests the same."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import BODY, FixtureAct, ServerHarness


def _apart(harness: ServerHarness, what: str, one: FixtureAct, other: FixtureAct, *, elsewhere: bool = False) -> None:
    """One key, used for one request and then for another."""
    harness.key, harness.id = str(uuid4()), uuid4().hex
    harness.first(one)
    harness.expect_distinction(what, other, elsewhere=elsewhere)


@case("F1")
def what_it_covers(harness: ServerHarness) -> None:
    guarded = harness.capabilities.choice("methods")
    if len(guarded) > 1:
        _apart(harness, "another method", FixtureAct(guarded[0]), FixtureAct(guarded[1]), elsewhere=True)
    _apart(harness, "another path", FixtureAct(path="/a"), FixtureAct(path="/b"), elsewhere=True)
    _apart(harness, "another query", FixtureAct(path="?a=1"), FixtureAct(path="?a=2"))
    _apart(harness, "another Content-Type", FixtureAct(), FixtureAct(content_type="text/plain"))
    _apart(harness, "another body", FixtureAct(), FixtureAct(body=b'{"n":2}'))
    packed = FixtureAct(body=gzip.compress(BODY, mtime=0), content_type="application/octet-stream")
    _apart(harness, "another Content-Encoding", packed._replace(fields=(("Content-Encoding", "gzip"),)), packed)
    for name in ("If-Match", "If-None-Match"):
        _apart(harness, f"another {name}", FixtureAct(fields=((name, '"a"'),)), FixtureAct(fields=((name, '"b"'),)))


@case("F2")
def raw_path_and_query(harness: ServerHarness) -> None:
    _apart(harness, "/a/b after /a%2Fb", FixtureAct(path="/a%2Fb"), FixtureAct(path="/a/b"), elsewhere=True)
    _apart(harness, "/a/ after /a", FixtureAct(path="/a"), FixtureAct(path="/a/"), elsewhere=True)
    _apart(harness, "a=2&a=1 after a=1&a=2", FixtureAct(path="?a=1&a=2"), FixtureAct(path="?a=2&a=1"))


@case("F3")
def json_bodies(harness: ServerHarness) -> None:
    close = (b'{"n":0.1}', b'{"n":0.1000000000000000055}')
    _apart(harness, "0.1000000000000000055 after 0.1", FixtureAct(body=close[0]), FixtureAct(body=close[1]))
    if harness.capabilities.choice("json") == "bytes":
        _apart(harness, "the same JSON with a space", FixtureAct(), FixtureAct(body=b'{"n": 1}'))
        _apart(
            harness, "a member without its duplicate", FixtureAct(body=b'{"n":1,"n":2}'), FixtureAct(body=b'{"n":2}')
        )
        return
    harness.key, harness.id = str(uuid4()), uuid4().hex
    first = harness.first(FixtureAct(body=b'{"a":1,"b":2}'), text='{"n":1}')
    harness.expect_replay(first, FixtureAct(body=b'{"b":2, "a":1}'))
    harness.expect_refusal(400, "duplicate members", FixtureAct(body=b'{"n":1,"n":2}'), key=str(uuid4()))


@case("F4")
def multipart(harness: ServerHarness) -> None:
    first = harness.first(_form("one", "value"), text='{"form":1}')
    harness.expect_replay(first, _form("two", "value"), text='{"form":1}')
    harness.expect_distinction("another value in the form", _form("three", "other"))


def _form(boundary: str, value: str) -> FixtureAct:
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="field"\r\n\r\n{value}\r\n--{boundary}--\r\n'
    return FixtureAct(body=part.encode(), content_type=f"multipart/form-data; boundary={boundary}")


@case("F5")
def what_it_leaves_out(harness: ServerHarness) -> None:
    once, again = _passing("1"), _passing("2")
    first = harness.first(FixtureAct(fields=tuple(once)))
    harness.expect_replay(first, FixtureAct(fields=tuple(again)))


def _passing(mark: str) -> Iterator[tuple[str, str]]:
    """Fields that change from attempt to attempt."""
    yield "Date", f"Fri, 01 May 2026 00:00:0{mark} GMT"
    yield "Traceparent", f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{mark}-01"
    yield "X-Request-Id", mark
    yield "User-Agent", f"attempt/{mark}"


@case("F6")
def mismatch(harness: ServerHarness) -> None:
    status = harness.capabilities.choice("mismatch_status")
    other = FixtureAct(body=b'{"n":2}')
    first = harness.first()
    harness.expect_refusal(status, "the same key with another body", other)
    harness.expect_replay(first)
    if "gate" in harness.capabilities.features:
        _while_it_runs(harness, status, other)
    else:
        harness.notes.append("not looked at while the original runs: the fixture has no gate")


def _while_it_runs(harness: ServerHarness, status: int, other: FixtureAct) -> None:
    harness.key, harness.id = str(uuid4()), uuid4().hex
    running = harness.begin(gate="before")
    harness.wait_for_entry()
    hidden = harness.capabilities.transactional  # uncommitted work can't be seen, only that something runs
    asked = harness.begin(other)
    if hidden and harness.capabilities.choice("concurrency") == "wait":
        harness.release()
    response = asked.result()
    wanted = {status, harness.capabilities.choice("concurrent_status")} if hidden else {status}
    expected = f"{' or '.join(map(str, sorted(wanted)))} for another body while the original runs"
    harness.expect(response.status in wanted, expected, response)
    harness.release()
    harness.expect_replay(running.result())
