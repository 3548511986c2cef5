"""F: what makes two requests the same."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from uuid import uuid4

from retrysafe.conformance.bench import BODY, Bench, Call
from retrysafe.conformance.cases.registry import case


def _apart(bench: Bench, what: str, one: Call, other: Call, *, elsewhere: bool = False) -> None:
    """One key, used for one request and then for another."""
    bench.key, bench.id = str(uuid4()), uuid4().hex
    bench.first(one)
    bench.expect_distinction(what, other, elsewhere=elsewhere)


@case("F1")
def what_it_covers(bench: Bench) -> None:
    guarded = bench.capabilities.choice("methods")
    if len(guarded) > 1:
        _apart(bench, "another method", Call(guarded[0]), Call(guarded[1]), elsewhere=True)
    _apart(bench, "another path", Call(path="/a"), Call(path="/b"), elsewhere=True)
    _apart(bench, "another query", Call(path="?a=1"), Call(path="?a=2"))
    _apart(bench, "another Content-Type", Call(), Call(content_type="text/plain"))
    _apart(bench, "another body", Call(), Call(body=b'{"n":2}'))
    packed = Call(body=gzip.compress(BODY, mtime=0), content_type="application/octet-stream")
    _apart(bench, "another Content-Encoding", packed._replace(fields=(("Content-Encoding", "gzip"),)), packed)
    for name in ("If-Match", "If-None-Match"):
        _apart(bench, f"another {name}", Call(fields=((name, '"a"'),)), Call(fields=((name, '"b"'),)))


@case("F2")
def raw_path_and_query(bench: Bench) -> None:
    _apart(bench, "/a/b after /a%2Fb", Call(path="/a%2Fb"), Call(path="/a/b"), elsewhere=True)
    _apart(bench, "/a/ after /a", Call(path="/a"), Call(path="/a/"), elsewhere=True)
    _apart(bench, "a=2&a=1 after a=1&a=2", Call(path="?a=1&a=2"), Call(path="?a=2&a=1"))


@case("F3")
def json_bodies(bench: Bench) -> None:
    close = (b'{"n":0.1}', b'{"n":0.1000000000000000055}')
    _apart(bench, "0.1000000000000000055 after 0.1", Call(body=close[0]), Call(body=close[1]))
    if bench.capabilities.choice("json") == "bytes":
        _apart(bench, "the same JSON with a space", Call(), Call(body=b'{"n": 1}'))
        _apart(bench, "a member without its duplicate", Call(body=b'{"n":1,"n":2}'), Call(body=b'{"n":2}'))
        return
    bench.key, bench.id = str(uuid4()), uuid4().hex
    first = bench.first(Call(body=b'{"a":1,"b":2}'), text='{"n":1}')
    bench.expect_replay(first, Call(body=b'{"b":2, "a":1}'))
    bench.expect_refusal(400, "duplicate members", Call(body=b'{"n":1,"n":2}'), key=str(uuid4()))


@case("F4")
def multipart(bench: Bench) -> None:
    first = bench.first(_form("one", "value"), text='{"form":1}')
    bench.expect_replay(first, _form("two", "value"), text='{"form":1}')
    bench.expect_distinction("another value in the form", _form("three", "other"))


def _form(boundary: str, value: str) -> Call:
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="field"\r\n\r\n{value}\r\n--{boundary}--\r\n'
    return Call(body=part.encode(), content_type=f"multipart/form-data; boundary={boundary}")


@case("F5")
def what_it_leaves_out(bench: Bench) -> None:
    once, again = _passing("1"), _passing("2")
    first = bench.first(Call(fields=tuple(once)))
    bench.expect_replay(first, Call(fields=tuple(again)))


def _passing(mark: str) -> Iterator[tuple[str, str]]:
    """Fields that change from attempt to attempt."""
    yield "Date", f"Fri, 01 May 2026 00:00:0{mark} GMT"
    yield "Traceparent", f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{mark}-01"
    yield "X-Request-Id", mark
    yield "User-Agent", f"attempt/{mark}"


@case("F6")
def mismatch(bench: Bench) -> None:
    status = bench.capabilities.choice("mismatch_status")
    other = Call(body=b'{"n":2}')
    first = bench.first()
    bench.expect_refusal(status, "the same key with another body", other)
    bench.expect_replay(first)
    if "gate" in bench.capabilities.features:
        _while_it_runs(bench, status, other)
    else:
        bench.notes.append("not looked at while the original runs: the fixture has no gate")


def _while_it_runs(bench: Bench, status: int, other: Call) -> None:
    bench.key, bench.id = str(uuid4()), uuid4().hex
    running = bench.begin(gate="before")
    bench.wait_for_entry()
    hidden = bench.capabilities.transactional  # uncommitted work can't be seen, only that something runs
    asked = bench.begin(other)
    if hidden and bench.capabilities.choice("concurrency") == "wait":
        bench.release()
    response = asked.result()
    wanted = {status, bench.capabilities.choice("concurrent_status")} if hidden else {status}
    expected = f"{' or '.join(map(str, sorted(wanted)))} for another body while the original runs"
    bench.expect(response.status in wanted, expected, response)
    bench.release()
    bench.expect_replay(running.result())
