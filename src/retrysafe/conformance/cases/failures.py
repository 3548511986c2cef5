"""R, D, T: what becomes of a request that fails, and how refusals are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from retrysafe.conformance.bench import Bench, Broken, Call, Inapplicable, is_marked
from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.wire import Response, Silent

STORED = (400, 404, 410, 422)
NOT_STORED = (401, 403, 408, 421, 425, 429)


@case("R3")
def problems(bench: Bench) -> None:
    found = [(code, response) for code, response in _refusals(bench) if response.status >= 400]
    bench.expect(bool(found), "a refusal to look at", "none: whatever was asked was answered")
    for code, response in found:
        _is_problem(bench, response, code)


def _refusals(bench: Bench) -> Iterator[tuple[str, Response]]:
    """Yield the responses that should be refusals, by their code; other rules check that they are."""
    yield "key-invalid", bench.act(lines=[f'"{bench.key}'])
    if bench.capabilities.choice("required"):
        yield "key-missing", bench.act(key=None)
    bench.key = str(uuid4())
    bench.first()
    yield "key-reused", bench.again(Call(body=b'{"n":2}'))
    if "gate" in bench.capabilities.features and bench.capabilities.choice("concurrency") == "reject":
        bench.key, bench.id = str(uuid4()), uuid4().hex
        running = bench.begin(gate="before")
        bench.wait_for_entry()
        yield "in-progress", bench.act()
        bench.release()
        running.result()


def _is_problem(bench: Bench, response: Response, code: str) -> None:
    media = (response.one("Content-Type") or "").partition(";")[0].strip()
    bench.expect(
        media == "application/problem+json", f"application/problem+json for {code}", f"{media or 'no media type'}"
    )
    told = _members(response.body)
    missing = [name for name in ("type", "title", "status", "detail", "code", "safe_new_key") if name not in told]
    bench.expect(not missing, f"all members of the problem {code}", f"{', '.join(missing)} missing in {told}")
    bench.expect(told["code"] == code, f"code {code}", f"code {told['code']}")
    bench.expect(
        told["status"] == response.status, f"status {response.status} in the problem", f"status {told['status']}"
    )
    bench.expect(isinstance(told["safe_new_key"], bool), "safe_new_key true or false", f"{told['safe_new_key']!r}")
    described = any("describedby" in line for line in response.all("Link"))
    bench.expect(described, "a Link with rel=describedby", f"Link: {response.all('Link')}")


def _members(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@case("R15")
def background_work(bench: Bench) -> None:
    first = bench.first(background="raise", text='{"done":1}')
    bench.until(lambda: bench.calls().get("background", 0) >= 1, "the background work to run")
    bench.expect_replay(first, background="count")
    found = bench.calls().get("background")
    bench.expect(found == 1, "no background work on replay: 1 in all", f"{found} in all")


@case("R16")
def exceptions(bench: Bench) -> None:
    _fails(bench, "a 503 of the handler", status=503, text='{"down":true}')
    if "raise" not in bench.capabilities.features:
        bench.notes.append("exceptions were not looked at: the fixture raises none")
        return
    _fails(bench, "an exception before the response", **{"raise": "before"})
    if "stream" in bench.capabilities.features:
        _fails(bench, "an exception within the response", **{"raise": "between"}, stream=True, text="half", repeat=2)


def _fails(bench: Bench, what: str, **script: Any) -> None:
    """Fail, and retry with a script that succeeds."""
    bench.key, bench.id = str(uuid4()), uuid4().hex
    failed = _whatever(bench, **script)
    bench.ran(1, what)
    bench.expect(failed is None or not is_marked(failed), f"no replay marker on {what}", failed or "")
    policy = bench.capabilities.choice("on_5xx")
    again = bench.again(text='{"second":true}')
    if policy == "release" or (policy == "store" and (failed is None or not failed.whole)):
        ran_anew = (again.status, again.body, bench.executions()) == (200, b'{"second":true}', 2)
        unknown = policy == "store" and again.status >= 400 and bench.executions() == 1
        bench.expect(ran_anew or unknown, f"a new run after {what}, 200 with its whole body", again)
        if ran_anew:
            bench.expect_replay(again, times=2)
    elif policy == "store" and failed is not None:
        bench.expect((again.status, again.body) == (failed.status, failed.body), f"{what} to be replayed", again)
        bench.ran(1, f"{what} to be replayed", again)
    else:
        bench.expect(again.status >= 400, f"a refusal after {what}, because nobody knows what it did", again)
        bench.ran(1, f"no new run after {what}", again)


def _whatever(bench: Bench, **script: Any) -> Response | None:
    """The answer to a request that fails; None if the connection broke off instead."""
    try:
        return bench.act(**script)
    except (ConnectionError, Silent):
        return None


@case("D1")
def client_errors(bench: Bench) -> None:
    stores = bench.capabilities.choice("on_4xx") == "store"
    for status in (*STORED, *NOT_STORED):
        id, key = uuid4().hex, str(uuid4())
        first = bench.first(id=id, key=key, status=status, text='{"no":1}')
        if stores and status in STORED:
            bench.expect_replay(first, id=id, key=key)
            continue
        again = bench.again(id=id, key=key, text='{"yes":1}')
        ran = bench.executions(id)
        kept = (again.status, again.body, ran) == (200, b'{"yes":1}', 2)
        bench.expect(kept, f"a new run after {status}", again)


@case("T1")
def rolls_back(bench: Bench) -> None:
    if "effects" not in bench.calls():
        raise Inapplicable("the fixture has no database whose effects it could count")
    _rolls_back(bench, "a 503 of the handler", status=503)
    if "raise" in bench.capabilities.features:
        _rolls_back(bench, "an exception", **{"raise": "before"})


def _rolls_back(bench: Bench, what: str, **script: Any) -> None:
    bench.key, bench.id = str(uuid4()), uuid4().hex
    _whatever(bench, **script)
    _effects(bench, 0, f"no effect after {what}")
    if bench.capabilities.choice("on_5xx") != "release":
        return
    bench.again()
    _effects(bench, 1, f"one effect after the retry of {what}")
    bench.again()
    _effects(bench, 1, "no further effect by a replay")


def _effects(bench: Bench, wanted: int, expected: str) -> None:
    found = bench.calls().get("effects")
    if found != wanted:
        raise Broken(expected, f"{found} effects")
