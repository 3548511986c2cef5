"""R: one run at a time, and what becomes of it when time passes, clients vanish and stores are gone."""

from __future__ import annotations

import time
from concurrent.futures import Future
from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import FixtureAct, Inapplicable, ServerHarness
from retrysafe.conformance.wire import WireReply

AT_ONCE = 5
ROUNDS = 20
LONGEST_LEASE = 3.0
"""Seconds: a longer lease is not waited for."""


@case("R1")
def several_at_once(harness: ServerHarness) -> None:
    waits = harness.capabilities.choice("concurrency") == "wait"
    asked = [harness.begin(gate="before") for _ in range(AT_ONCE)]
    harness.wait_for_entry()
    if not waits:
        others = _answers(harness, asked)
        status = harness.capabilities.choice("concurrent_status")
        for response in others:
            harness.expect(response.status == status, f"{status} while the first runs", response)
            wait = response.one("Retry-After") or ""
            told = (wait.isdigit() and int(wait) >= 1) or not harness.capabilities.choice("retry_after")
            harness.expect(told, "Retry-After in whole seconds, at least 1", response)
    harness.release()
    answers = [one.result() for one in asked]
    good = sum(answer.status == 200 for answer in answers)
    wanted = AT_ONCE if waits else 1
    harness.expect(good == wanted, f"{wanted} of {AT_ONCE} to be answered 200", f"{sorted(a.status for a in answers)}")
    harness.ran(1, "exactly one to run")


def _answers(harness: ServerHarness, asked: list[Future[WireReply]]) -> list[WireReply]:
    """The answers of all but the one that runs, which come while it still does."""
    others = AT_ONCE - 1

    def is_settled() -> bool:
        return sum(one.done() for one in asked) >= others or harness.executions() > 1

    harness.until(is_settled, f"{others} of {AT_ONCE} to be answered while the first runs")
    harness.ran(1, f"exactly one of {AT_ONCE} at once to run")
    return [one.result() for one in asked if one.done()]


@case("R8")
def on_its_heels(harness: ServerHarness) -> None:
    busy = harness.capabilities.choice("concurrent_status")
    for round in range(ROUNDS):
        harness.key, harness.id = str(uuid4()), uuid4().hex
        with harness.connection() as one, harness.connection() as other:
            request = harness.request()
            data = harness.request().encode(harness.to.authority)
            first = one.ask(request)
            other.send(data)
            second = other.receive()
        heels = f"on the heels of a complete response, in round {round + 1} of {ROUNDS}"
        harness.expect(second.status != busy or first.status == busy, "the replay", f"{second.status} {heels}")
        harness.ran(1, f"the replay {heels}", second)


@case("R9")
def store_lost_at_the_end(harness: ServerHarness) -> None:
    running = harness.begin(gate="before", text="true")
    harness.wait_for_entry()
    harness.control("/store?up=0")
    try:
        harness.release()
        first = running.result()
    finally:
        harness.control("/store?up=1")
    harness.expect((first.status, first.body) == (200, b"true"), "the true response, 200 with true", first)
    if harness.capabilities.choice("concurrency") == "wait":
        harness.notes.append("a retry would wait: that the claim is kept was not looked at")
        return
    harness.act()
    harness.ran(1, "the claim to be kept, so that a retry doesn't run")


@case("R17")
def client_vanishes(harness: ServerHarness) -> None:
    with harness.connection() as connection:
        connection.send(harness.request(gate="before", text='{"kept":1}').encode(harness.to.authority))
        harness.wait_for_entry()
        connection.abort()
    harness.release()
    response = harness.again(text='{"second":1}')
    expected = "the result of the request whose client vanished, 200 with kept"
    harness.expect((response.status, response.body) == (200, b'{"kept":1}'), expected, response)
    harness.ran(1, "one run, although its client vanished", response)


@case("R19")
def lease_renewed(harness: ServerHarness) -> None:
    lease = harness.capabilities.limits.get("lease")
    if lease is None or lease > LONGEST_LEASE:
        told = "no lease is declared" if lease is None else f"its lease of {lease:g} s"
        raise Inapplicable(f"a lease is waited for only up to {LONGEST_LEASE:g} s: {told}")
    running = harness.begin(gate="before")
    harness.wait_for_entry()
    time.sleep(2 * lease)  # nothing may happen when this time passes
    if harness.capabilities.choice("concurrency") == "wait":
        waiting = harness.begin()
        harness.release()
        waiting.result()
    else:
        harness.act()
    harness.ran(1, "no takeover while the handler runs")
    harness.release()
    harness.expect_replay(running.result())


@case("R21")
def window_passed(harness: ServerHarness) -> None:
    window = harness.capabilities.limits.get("window")
    if window is None:
        raise Inapplicable("no window is declared")
    first = harness.first(text='{"n":"old"}')
    harness.expect_replay(first)
    harness.control(f"/elapse?seconds={window + 1:g}")
    if harness.capabilities.choice("on_expired") == "refuse":
        harness.expect_refusal(409, "a key whose window has passed")
        return
    response = harness.again(text='{"n":"new"}')
    harness.expect(
        (response.status, response.body) == (200, b'{"n":"new"}'), "a new run after the window, 200 with new", response
    )
    harness.ran(2, "a new run after the window")


@case("R25")
def own_refusals(harness: ServerHarness) -> None:
    if "gate" in harness.capabilities.features and harness.capabilities.choice("concurrency") == "reject":
        running = harness.begin(gate="before")
        harness.wait_for_entry()
        harness.act()
        harness.release()
        harness.expect_replay(running.result())
    else:
        harness.notes.append("no conflict could be provoked to see that it isn't stored")
    harness.key, harness.id = str(uuid4()), uuid4().hex
    first = harness.first()
    harness.act(FixtureAct(body=b'{"n":2}'))
    harness.expect_replay(first)
    if "store" in harness.capabilities.features:
        _without_store(harness)
    else:
        harness.notes.append("not looked at without its store: the fixture can't take it away")


def _without_store(harness: ServerHarness) -> None:
    harness.key, harness.id = str(uuid4()), uuid4().hex
    harness.control("/store?up=0")
    try:
        response = harness.expect_refusal(503, "a request while the store is down")
        harness.expect((response.one("Retry-After") or "").isdigit(), "Retry-After in whole seconds", response)
    finally:
        harness.control("/store?up=1")
    # a claim whose answer got lost as the store went away is in progress until its lease has lapsed
    response = harness.again()
    harness.expect(response.status == 200, "a retry to run and answer 200 once the store is back", response)
    harness.ran(1, "a retry to run once the store is back", response)
