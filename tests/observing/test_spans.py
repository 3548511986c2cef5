"""Spans around attempts: how they nest, what they say, and that the context is given back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from retrysafe import Boundary, InProgress, KeyReused, LeaseLost, OutcomeUnknown, RetryTransaction, StoredFailure, wait
from tests.observing.telemetry import Telemetry, Works, apart, attributes, events
from tests.tables import each_row

CLAIM = "retrysafe claim "


def only(spans: Sequence[ReadableSpan]) -> ReadableSpan:
    (span,) = spans
    return span


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Tell whether a span stands directly under another one, in its trace."""
    return span.parent is not None and span.parent.span_id == parent.context.span_id


# ---------------------------------------------------------------- nesting


@each_row("effects", ["keyed", "transactional"])
async def test_work_nests_under_its_attempt_and_the_attempt_under_its_caller(
    works: Works, telemetry: Telemetry, effects: Any
) -> None:
    boundary = works.boundary(effects=effects)
    before = trace.get_current_span()
    with telemetry.tracer.start_as_current_span("request"):
        async with works.entered(boundary.claim("k", operation="charge")) as claim:
            with telemetry.tracer.start_as_current_span("work"):
                claim.result = 1
        with telemetry.tracer.start_as_current_span("after"):
            pass
    assert trace.get_current_span() is before
    spans = {span.name: span for span in telemetry.spans()}
    assert list(spans) == ["work", f"{CLAIM}charge", "after", "request"]
    assert is_child(spans["work"], spans[f"{CLAIM}charge"])
    assert is_child(spans[f"{CLAIM}charge"], spans["request"])
    assert is_child(spans["after"], spans["request"])


async def test_claims_nest_and_a_thread_of_the_work_too(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    async with works.entered(boundary.claim("outer", operation="outer")):
        async with works.entered(boundary.claim("inner", operation="inner")):
            pass
        await asyncio.to_thread(lambda: telemetry.tracer.start_span("thread").end())
    spans = {span.name: span for span in telemetry.spans()}
    assert is_child(spans[f"{CLAIM}inner"], spans[f"{CLAIM}outer"])
    assert is_child(spans["thread"], spans[f"{CLAIM}outer"])


@each_row("error", [None, ValueError("x"), asyncio.CancelledError()])
async def test_the_context_is_given_back(works: Works, error: BaseException | None) -> None:
    boundary = works.boundary()
    token = context.attach(baggage.set_baggage("tenant", "a"))
    before = context.get_current()
    for _ in range(3):
        with suppress(ValueError, asyncio.CancelledError):
            await works.run(boundary, "k", 1 if error is None else error, payload=1)
        assert context.get_current() == before
        with pytest.raises(KeyReused):
            await works.run(boundary, "k", payload=2)
        assert context.get_current() == before
    context.detach(token)


async def test_tasks_at_once_keep_their_spans_apart(telemetry: Telemetry, tmp_path: Path) -> None:
    works = Works(tmp_path, telemetry, sync=False)
    boundary = works.boundary()

    async def one(number: int) -> None:
        async with works.entered(boundary.claim(f"k{number}", operation=f"op{number}")):
            await asyncio.sleep(0)
            telemetry.tracer.start_span(f"work{number}").end()

    await asyncio.gather(*(one(number) for number in range(20)))
    spans = {span.name: span for span in telemetry.spans()}
    for number in range(20):
        assert is_child(spans[f"work{number}"], spans[f"{CLAIM}op{number}"])
    await works.close()


async def test_work_that_is_cancelled(telemetry: Telemetry, tmp_path: Path) -> None:
    works = Works(tmp_path, telemetry, sync=False)
    boundary = works.boundary()
    inside = asyncio.Event()
    after: list[object] = []

    async def work() -> None:
        before = trace.get_current_span()
        try:
            async with boundary.claim("k"):
                inside.set()
                await asyncio.Event().wait()
        finally:
            after.append(trace.get_current_span() is before)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = only(telemetry.spans())
    assert attributes(span)["error.type"] == "CancelledError"
    assert attributes(span)["retrysafe.ending"] == "released"
    assert after == [True]
    await works.close()


async def test_a_block_left_in_another_context_is_no_error(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    boundary = Boundary("x", store="memory://", observers=[telemetry.observer])

    async def items() -> AsyncGenerator[int, None]:
        async with boundary.claim("k", operation="items"):
            yield 1
            yield 2

    found = items()
    await apart(found.asend(None))

    async def leave() -> bool:
        with telemetry.tracer.start_as_current_span("elsewhere") as elsewhere:
            await found.aclose()
            return trace.get_current_span() is elsewhere

    assert await apart(leave()), "who leaves the block keeps its own span"
    span = only(telemetry.spans(CLAIM))
    assert (span.status.description, attributes(span)["error.type"]) == ("released", "GeneratorExit")
    assert caplog.records == []

    @contextmanager
    def dependency() -> Iterator[None]:
        with boundary.claim("other", operation="dependency"):
            yield

    entered = dependency()
    copy_context().run(entered.__enter__)
    thread = threading.Thread(target=Context().run, args=(entered.__exit__, None, None, None))
    thread.start()
    thread.join()
    assert telemetry.spans()[-1].name == f"{CLAIM}dependency"
    assert caplog.records == []
    boundary.close()


# ---------------------------------------------------------------- what a span says


async def test_attributes_of_an_attempts_span(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(name="charges", effects="keyed")
    first = await works.run(boundary, "secret-key", payload="secret payload")
    await works.run(boundary, "secret-key", payload="secret payload")
    started, replayed = telemetry.spans()
    assert attributes(started) == {
        "retrysafe.boundary": "charges",
        "retrysafe.operation": "charges",
        "retrysafe.effects": "keyed",
        "retrysafe.store": "sqlite",
        "retrysafe.key": first._require_request().key[:4].hex(),
        "retrysafe.attempt": first.attempt_id,
        "retrysafe.outcome": "started",
        "retrysafe.ending": "completed",
    }
    assert attributes(replayed)["retrysafe.outcome"] == "replayed"
    assert "retrysafe.ending" not in attributes(replayed)
    for span in (started, replayed):
        assert span.status.status_code is StatusCode.UNSET
        assert "secret" not in span.to_json()
    assert events(started) == ["started", "completed"]
    assert events(replayed) == ["replayed"]


async def test_a_failure_is_an_error_without_its_text(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(permanent=ValueError)
    with pytest.raises(ValueError, match="secret"):
        await works.run(boundary, "k", ValueError("secret text"))
    with pytest.raises(StoredFailure):
        await works.run(boundary, "k")
    failed, replayed = telemetry.spans()
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "failed")
    assert attributes(failed)["error.type"] == "ValueError"
    assert (replayed.status.status_code, replayed.status.description) == (StatusCode.ERROR, "failure_replayed")
    assert "secret" not in failed.to_json() + replayed.to_json()


async def test_a_declared_failure_is_an_error_too(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    async with works.entered(boundary.claim("k")) as claim:
        claim.fail(ValueError("declined"))
    span = only(telemetry.spans())
    assert (span.status.description, attributes(span)["error.type"]) == ("failed", "ValueError")


async def test_a_duplicate_is_no_error_but_a_reused_key_is(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    async with works.entered(boundary.claim("k", payload=1)):
        with pytest.raises(InProgress):
            await apart(works.run(boundary, "k", payload=1))
    with pytest.raises(KeyReused):
        await works.run(boundary, "k", payload={"amount": 1})
    conflict, _, reused = telemetry.spans()
    assert conflict.status.status_code is StatusCode.UNSET
    assert attributes(conflict)["retrysafe.outcome"] == "conflict"
    assert (reused.status.status_code, reused.status.description) == (StatusCode.ERROR, "mismatch")


async def test_a_takeover_and_who_was_taken_over(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    with pytest.raises(LeaseLost):
        async with works.entered(boundary.claim("k")):
            works.let_leases_lapse()
            await apart(works.run(boundary, "k"))
    second, first = telemetry.spans()
    assert events(second) == ["takeover", "completed"]
    takeover = dict(second.events[0].attributes or {})
    assert takeover["retrysafe.attempts"] == 2
    assert events(first) == ["started", "lease_lost"]
    assert (first.status.description, attributes(first)["error.type"]) == ("lease_lost", "LeaseLost")


@pytest.mark.slow
async def test_renewals_that_fail_are_events_told_from_the_heartbeat(works: Works, telemetry: Telemetry) -> None:
    failed, loop = asyncio.Event(), asyncio.get_running_loop()

    def told(occurrence: Any) -> None:
        if occurrence.name == "renewal_failed":
            loop.call_soon_threadsafe(failed.set)

    boundary = works.boundary(lease="6s", observers=[telemetry.observer, told])
    async with works.entered(boundary.claim("k")) as claim:
        works._write("ALTER TABLE retrysafe_records RENAME TO away")
        await asyncio.wait_for(failed.wait(), 60)
        works._write("ALTER TABLE away RENAME TO retrysafe_records")
        claim.result = 1
    span = only(telemetry.spans())
    assert "renewal_failed" in events(span)
    assert telemetry.total("retrysafe.renewals_failed") >= 1
    assert attributes(span)["retrysafe.ending"] == "completed"


async def test_doubt(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(effects="external")
    with pytest.raises(ValueError, match="x"):
        await works.run(boundary, "k", ValueError("x"))
    with pytest.raises(OutcomeUnknown):
        await works.run(boundary, "k")
    unknown, doubted = telemetry.spans()
    assert (unknown.status.status_code, unknown.status.description) == (StatusCode.ERROR, "unknown")
    assert (doubted.status.status_code, doubted.status.description) == (StatusCode.ERROR, "unknown_refused")


async def test_a_waiter_says_how_often(telemetry: Telemetry, tmp_path: Path) -> None:
    works = Works(tmp_path, telemetry, sync=False)
    boundary = works.boundary(concurrency=wait(0.05))
    async with works.entered(boundary.claim("k")):
        with pytest.raises(InProgress):
            await apart(works.run(boundary, "k"))
    waited = telemetry.spans()[0]
    assert attributes(waited)["retrysafe.waits"] >= 1
    assert events(waited) == ["conflict"]
    await works.close()


async def test_every_run_of_a_restarted_transaction_has_a_span(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(effects="transactional")
    runs: list[int] = []

    def body() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise RetryTransaction("deadlock")
        return len(runs)

    if works.sync:
        boundary.once(key=lambda: "k", operation="op")(body)()
    else:

        async def abody() -> int:
            return body()

        await boundary.once(key=lambda: "k", operation="op")(abody)()
    first, second = telemetry.spans()
    assert (attributes(first)["retrysafe.ending"], attributes(second)["retrysafe.ending"]) == (
        "rolled_back",
        "completed",
    )
    assert first.parent is None
    assert second.parent is None, "siblings"
    assert telemetry.total("retrysafe.restarts") == 1


async def test_a_claim_entered_twice_does_not_end_the_span_of_the_first(works: Works, telemetry: Telemetry) -> None:
    from retrysafe import ConfigurationError

    boundary = works.boundary()
    async with works.entered(boundary.claim("k")) as claim:
        with pytest.raises(ConfigurationError):
            async with works.entered(claim):
                pytest.fail("entered twice")
        assert telemetry.spans() == []
        assert trace.get_current_span().is_recording()
    assert len(telemetry.spans()) == 1


# ---------------------------------------------------------------- telemetry that fails


class Broken(SpanProcessor, SpanExporter):
    """Raises at the end of every span."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("the processor is broken")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("the exporter is broken")


@pytest.mark.parametrize("kind", ["processor", "exporter"])
async def test_telemetry_that_fails_stops_nobody(
    works: Works, telemetry: Telemetry, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    telemetry.tracers.add_span_processor(Broken() if kind == "processor" else SimpleSpanProcessor(Broken()))
    boundary = works.boundary()
    before = context.get_current()
    with caplog.at_level(logging.ERROR):
        assert (await works.run(boundary, "k", 7)).result == 7
        assert (await works.run(boundary, "k", 8)).result == 7
    assert f"the {kind} is broken" in caplog.text
    assert context.get_current() == before
    assert telemetry.total("retrysafe.in_progress") == 0


async def test_without_an_sdk_nothing_happens(works: Works) -> None:
    from retrysafe.observability.otel import OpenTelemetryObserver

    boundary = works.boundary(observers=[OpenTelemetryObserver()])
    assert (await works.run(boundary, "k", 7)).result == 7
    assert not trace.get_current_span().get_span_context().is_valid
