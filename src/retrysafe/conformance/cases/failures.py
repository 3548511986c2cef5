"""R, D, T: what becomes of a request that fails, and how refusals are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import FixtureAct, Inapplicable, RuleBroken, ServerHarness, is_marked
from retrysafe.conformance.wire import Silent, WireReply

STORED = (400, 404, 410, 422)
NOT_STORED = (401, 403, 408, 421, 425, 429)


@case("R3")
def problems(harness: ServerHarness) -> None:
    found = [(code, response) for code, response in _refusals(harness) if response.status >= 400]
    harness.expect(bool(found), "a refusal to look at", "none: whatever was asked was answered")
    for code, response in found:
        _is_problem(harness, response, code)


def _refusals(harness: ServerHarness) -> Iterator[tuple[str, WireReply]]:
    """Yield the responses that should be refusals, by their code; other rules check that they are."""
    yield "key-invalid", harness.act(lines=[f'"{harness.key}'])
    if harness.capabilities.choice("required"):
        yield "key-missing", harness.act(key=None)
    harness.key = str(uuid4())
    harness.first()
    yield "key-reused", harness.again(FixtureAct(body=b'{"n":2}'))
    if "gate" in harness.capabilities.features and harness.capabilities.choice("concurrency") == "reject":
        harness.key, harness.id = str(uuid4()), uuid4().hex
        running = harness.begin(gate="before")
        harness.wait_for_entry()
        yield "in-progress", harness.act()
        harness.release()
        running.result()


def _is_problem(harness: ServerHarness, response: WireReply, code: str) -> None:
    media = (response.one("Content-Type") or "").partition(";")[0].strip()
    harness.expect(
        media == "application/problem+json", f"application/problem+json for {code}", f"{media or 'no media type'}"
    )
    told = _members(response.body)
    missing = [name for name in ("type", "title", "status", "detail", "code", "safe_new_key") if name not in told]
    harness.expect(not missing, f"all members of the problem {code}", f"{', '.join(missing)} missing in {told}")
    harness.expect(told["code"] == code, f"code {code}", f"code {told['code']}")
    harness.expect(
        told["status"] == response.status, f"status {response.status} in the problem", f"status {told['status']}"
    )
    harness.expect(isinstance(told["safe_new_key"], bool), "safe_new_key true or false", f"{told['safe_new_key']!r}")
    described = any("describedby" in line for line in response.all("Link"))
    harness.expect(described, "a Link with rel=describedby", f"Link: {response.all('Link')}")


def _members(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@case("R15")
def background_work(harness: ServerHarness) -> None:
    first = harness.first(background="raise", text='{"done":1}')
    harness.until(lambda: harness.calls().get("background", 0) >= 1, "the background work to run")
    harness.expect_replay(first, background="count")
    found = harness.calls().get("background")
    harness.expect(found == 1, "no background work on replay: 1 in all", f"{found} in all")


@case("R16")
def exceptions(harness: ServerHarness) -> None:
    _fails(harness, "a 503 of the handler", status=503, text='{"down":true}')
    if "raise" not in harness.capabilities.features:
        harness.notes.append("exceptions were not looked at: the fixture raises none")
        return
    _fails(harness, "an exception before the response", **{"raise": "before"})
    if "stream" in harness.capabilities.features:
        _fails(harness, "an exception within the response", **{"raise": "between"}, stream=True, text="half", repeat=2)


def _fails(harness: ServerHarness, what: str, **script: Any) -> None:
    harness.key, harness.id = str(uuid4()), uuid4().hex
    failed = _whatever(harness, **script)
    harness.ran(1, what)
    harness.expect(failed is None or not is_marked(failed), f"no replay marker on {what}", failed or "")
    policy = harness.capabilities.choice("on_5xx")
    again = harness.again(text='{"second":true}')
    if policy == "release" or (policy == "store" and (failed is None or not failed.whole)):
        ran_anew = (again.status, again.body, harness.executions()) == (200, b'{"second":true}', 2)
        unknown = policy == "store" and again.status >= 400 and harness.executions() == 1
        harness.expect(ran_anew or unknown, f"a new run after {what}, 200 with its whole body", again)
        if ran_anew:
            harness.expect_replay(again, times=2)
    elif policy == "store" and failed is not None:
        harness.expect((again.status, again.body) == (failed.status, failed.body), f"{what} to be replayed", again)
        harness.ran(1, f"{what} to be replayed", again)
    else:
        harness.expect(again.status >= 400, f"a refusal after {what}, because nobody knows what it did", again)
        harness.ran(1, f"no new run after {what}", again)


def _whatever(harness: ServerHarness, **script: Any) -> WireReply | None:
    """The answer to a request that fails; None if the connection broke off instead."""
    try:
        return harness.act(**script)
    except (ConnectionError, Silent):
        return None


@case("D1")
def client_errors(harness: ServerHarness) -> None:
    stores = harness.capabilities.choice("on_4xx") == "store"
    for status in (*STORED, *NOT_STORED):
        id, key = uuid4().hex, str(uuid4())
        first = harness.first(id=id, key=key, status=status, text='{"no":1}')
        if stores and status in STORED:
            harness.expect_replay(first, id=id, key=key)
            continue
        again = harness.again(id=id, key=key, text='{"yes":1}')
        ran = harness.executions(id)
        kept = (again.status, again.body, ran) == (200, b'{"yes":1}', 2)
        harness.expect(kept, f"a new run after {status}", again)


@case("T1")
def rolls_back(harness: ServerHarness) -> None:
    if "effects" not in harness.calls():
        raise Inapplicable("the fixture has no database whose effects it could count")
    _rolls_back(harness, "a 503 of the handler", status=503)
    if "raise" in harness.capabilities.features:
        _rolls_back(harness, "an exception", **{"raise": "before"})


def _rolls_back(harness: ServerHarness, what: str, **script: Any) -> None:
    harness.key, harness.id = str(uuid4()), uuid4().hex
    _whatever(harness, **script)
    _effects(harness, 0, f"no effect after {what}")
    if harness.capabilities.choice("on_5xx") != "release":
        return
    harness.again()
    _effects(harness, 1, f"one effect after the retry of {what}")
    harness.again()
    _effects(harness, 1, "no further effect by a replay")


def _effects(harness: ServerHarness, wanted: int, expected: str) -> None:
    found = harness.calls().get("effects")
    if found != wanted:
        raise RuleBroken(expected, f"{found} effects")
