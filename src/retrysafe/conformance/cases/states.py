"""R: one run at a time, and what becomes of it when time passes, clients vanish and stores are gone."""

from __future__ import annotations

import time
from concurrent.futures import Future
from uuid import uuid4

from retrysafe.conformance.bench import Bench, Call, Inapplicable
from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.wire import Response

AT_ONCE = 5
ROUNDS = 20
LONGEST_LEASE = 3.0
"""Seconds: a longer lease is not waited for."""


@case("R1")
def several_at_once(bench: Bench) -> None:
    waits = bench.capabilities.choice("concurrency") == "wait"
    asked = [bench.begin(gate="before") for _ in range(AT_ONCE)]
    bench.wait_for_entry()
    if not waits:
        others = _answers(bench, asked)
        status = bench.capabilities.choice("concurrent_status")
        for response in others:
            bench.expect(response.status == status, f"{status} while the first runs", response)
            wait = response.one("Retry-After") or ""
            bench.expect(wait.isdigit() and int(wait) >= 1, "Retry-After in whole seconds, at least 1", response)
    bench.release()
    answers = [one.result() for one in asked]
    good = sum(answer.status == 200 for answer in answers)
    wanted = AT_ONCE if waits else 1
    bench.expect(good == wanted, f"{wanted} of {AT_ONCE} to be answered 200", f"{sorted(a.status for a in answers)}")
    bench.ran(1, "exactly one to run")


def _answers(bench: Bench, asked: list[Future[Response]]) -> list[Response]:
    """The answers of all but the one that runs, which come while it still does."""
    others = AT_ONCE - 1

    def is_settled() -> bool:
        return sum(one.done() for one in asked) >= others or bench.executions() > 1

    bench.until(is_settled, f"{others} of {AT_ONCE} to be answered while the first runs")
    bench.ran(1, f"exactly one of {AT_ONCE} at once to run")
    return [one.result() for one in asked if one.done()]


@case("R8")
def on_its_heels(bench: Bench) -> None:
    busy = bench.capabilities.choice("concurrent_status")
    for round in range(ROUNDS):
        bench.key, bench.id = str(uuid4()), uuid4().hex
        with bench.connection() as one, bench.connection() as other:
            request = bench.request()
            data = bench.request().encode(bench.to.authority)
            first = one.ask(request)
            other.send(data)
            second = other.receive()
        heels = f"on the heels of a complete response, in round {round + 1} of {ROUNDS}"
        bench.expect(second.status != busy or first.status == busy, "the replay", f"{second.status} {heels}")
        bench.ran(1, f"the replay {heels}", second)


@case("R9")
def store_lost_at_the_end(bench: Bench) -> None:
    running = bench.begin(gate="before", text="true")
    bench.wait_for_entry()
    bench.control("/store?up=0")
    try:
        bench.release()
        first = running.result()
    finally:
        bench.control("/store?up=1")
    bench.expect((first.status, first.body) == (200, b"true"), "the true response, 200 with true", first)
    if bench.capabilities.choice("concurrency") == "wait":
        bench.notes.append("a retry would wait: that the claim is kept was not looked at")
        return
    bench.act()
    bench.ran(1, "the claim to be kept, so that a retry doesn't run")


@case("R17")
def client_vanishes(bench: Bench) -> None:
    with bench.connection() as connection:
        connection.send(bench.request(gate="before", text='{"kept":1}').encode(bench.to.authority))
        bench.wait_for_entry()
        connection.abort()
    bench.release()
    response = bench.again(text='{"second":1}')
    expected = "the result of the request whose client vanished, 200 with kept"
    bench.expect((response.status, response.body) == (200, b'{"kept":1}'), expected, response)
    bench.ran(1, "one run, although its client vanished", response)


@case("R19")
def lease_renewed(bench: Bench) -> None:
    lease = bench.capabilities.limits.get("lease")
    if lease is None or lease > LONGEST_LEASE:
        told = "no lease is declared" if lease is None else f"its lease of {lease:g} s"
        raise Inapplicable(f"a lease is waited for only up to {LONGEST_LEASE:g} s: {told}")
    running = bench.begin(gate="before")
    bench.wait_for_entry()
    time.sleep(2 * lease)  # nothing may happen when this time passes
    if bench.capabilities.choice("concurrency") == "wait":
        waiting = bench.begin()
        bench.release()
        waiting.result()
    else:
        bench.act()
    bench.ran(1, "no takeover while the handler runs")
    bench.release()
    bench.expect_replay(running.result())


@case("R21")
def window_passed(bench: Bench) -> None:
    window = bench.capabilities.limits.get("window")
    if window is None:
        raise Inapplicable("no window is declared")
    first = bench.first(text='{"n":"old"}')
    bench.expect_replay(first)
    bench.control(f"/elapse?seconds={window + 1:g}")
    if bench.capabilities.choice("on_expired") == "refuse":
        bench.expect_refusal(409, "a key whose window has passed")
        return
    response = bench.again(text='{"n":"new"}')
    bench.expect(
        (response.status, response.body) == (200, b'{"n":"new"}'), "a new run after the window, 200 with new", response
    )
    bench.ran(2, "a new run after the window")


@case("R25")
def own_refusals(bench: Bench) -> None:
    if "gate" in bench.capabilities.features and bench.capabilities.choice("concurrency") == "reject":
        running = bench.begin(gate="before")
        bench.wait_for_entry()
        bench.act()
        bench.release()
        bench.expect_replay(running.result())
    else:
        bench.notes.append("no conflict could be provoked to see that it isn't stored")
    bench.key, bench.id = str(uuid4()), uuid4().hex
    first = bench.first()
    bench.act(Call(body=b'{"n":2}'))
    bench.expect_replay(first)
    if "store" in bench.capabilities.features:
        _without_store(bench)
    else:
        bench.notes.append("not looked at without its store: the fixture can't take it away")


def _without_store(bench: Bench) -> None:
    bench.key, bench.id = str(uuid4()), uuid4().hex
    bench.control("/store?up=0")
    try:
        response = bench.expect_refusal(503, "a request while the store is down")
        bench.expect((response.one("Retry-After") or "").isdigit(), "Retry-After in whole seconds", response)
    finally:
        bench.control("/store?up=1")
    # a claim whose answer got lost as the store went away is in progress until its lease has lapsed
    response = bench.again()
    bench.expect(response.status == 200, "a retry to run and answer 200 once the store is back", response)
    bench.ran(1, "a retry to run once the store is back", response)
