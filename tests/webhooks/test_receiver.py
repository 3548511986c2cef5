"""One effect per event, however it is delivered, on every store; and answers that make a provider do right."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import SerializationFailure
from sqlalchemy import create_engine

from retrysafe import (
    Boundary,
    ConfigurationError,
    InProgress,
    KeyReused,
    OutcomeUnknown,
    ResultNotEncodable,
    StoredFailure,
    wait,
)
from retrysafe.http.messages import Response
from retrysafe.testing import Clock as StoreClock
from retrysafe.webhooks import DeliveryRefused, GitHub, Head, Known, Receiver, Slack, WebhookEvent
from retrysafe.webhooks.deliveries import JSON
from retrysafe.webhooks.signatures import check_signature, signs
from tests.http.conftest import Place
from tests.http.places import LEASED, MEMORY, POSTGRESQL_TRANSACTIONAL, SEVERAL_AT_ONCE, only
from tests.webhooks.conftest import WINDOW, Clock, Effects, Gate, receiver_of
from tests.webhooks.providers import GITHUB, NOW, SLACK, STANDARD, STRIPE, Delivery, Provider, tampered

OTHER = b'{"id":"evt_other","object":"event","type":"customer.created","data":{"object":{}}}'
COLOURS = pytest.mark.parametrize("colour", ["sync", "async", "sync-on-a-loop"])


async def receive(receiver: Receiver, delivery: Delivery, colour: str) -> Response:
    """One delivery: in a thread, or on the loop."""
    if colour == "sync":
        return await asyncio.to_thread(receiver.receive, delivery.headers, delivery.body)
    return await receiver.areceive(delivery.headers, delivery.body)


def handled_by(receiver: Receiver, effects: Effects, kind: str, colour: str) -> None:
    """Let events of one type have an effect."""
    receiver.on(kind)(effects.ahad if colour == "async" else effects.had)


def header(response: Response, name: bytes) -> bytes | None:
    return dict(response.headers).get(name)


def replayed(response: Response) -> bool:
    return response.status == 200 and header(response, b"idempotent-replayed") == b"true"


def code(response: Response) -> str:
    assert header(response, b"content-type") == b"application/problem+json"
    return str(json.loads(response.body or b"")["code"])


# ------------------------------------------------------------ one effect each


@COLOURS
async def test_one_event_has_one_effect_however_it_is_delivered(
    place: Place, provider: Provider, effects: Effects, clock: Clock, colour: str
) -> None:
    """Tampered before it is genuine, then again, signed anew, late, by the other secret, and between other events."""
    scheme = provider.scheme(provider.secrets)
    receiver = receiver_of(place, provider, clock, scheme=scheme)
    handled_by(receiver, effects, provider.type, colour)
    first, other = provider.deliver(), provider.deliver("evt_other")

    assert code(await receive(receiver, tampered(first), colour)) == "signature-invalid"
    assert effects.of == []
    answer = await receive(receiver, other, colour)  # out of order
    assert (answer.status, answer.body, replayed(answer)) == (200, b"", False)
    assert not replayed(await receive(receiver, first, colour))
    assert replayed(await receive(receiver, first, colour))
    assert replayed(await receive(receiver, provider.deliver(secret=provider.secrets[1]), colour))
    clock.now = NOW + 3 * 86400
    late = await receive(receiver, first, colour)
    assert code(late) == "timestamp-outside" if provider.signs_time else replayed(late)
    assert replayed(await receive(receiver, provider.deliver(now=int(clock.now)), colour))
    assert replayed(await receive(receiver, provider.deliver("evt_other", now=int(clock.now)), colour))
    assert effects.of == sorted([provider.event_id, "evt_other"])


@pytest.mark.fault(77)
@SEVERAL_AT_ONCE
@COLOURS
async def test_simultaneous_deliveries_have_one_effect_and_the_others_are_told_to_come_again(
    place: Place, provider: Provider, effects: Effects, clock: Clock, colour: str
) -> None:
    receiver, gate = receiver_of(place, provider, clock), Gate()
    runs: list[str] = []

    def handle(event: WebhookEvent[Any]) -> None:
        runs.append(event.id)
        gate.pass_through()
        effects.had(event)

    async def ahandle(event: WebhookEvent[Any]) -> None:
        runs.append(event.id)
        await gate.apass_through()
        await effects.ahad(event)

    receiver.on(provider.type)(ahandle if colour == "async" else handle)
    winner = asyncio.create_task(receive(receiver, provider.deliver(), colour))
    await asyncio.to_thread(gate.entered.wait, 60)
    for answer in await asyncio.gather(*(receive(receiver, provider.deliver(), colour) for _ in range(5))):
        assert (answer.status, code(answer)) == (503, "in-progress")
        assert int(header(answer, b"retry-after") or b"0") >= 1
    gate.leave.set()
    assert (await winner).status == 200
    assert replayed(await receive(receiver, provider.deliver(), colour))
    assert runs == effects.of == [provider.event_id]


@pytest.mark.fault(16)
@SEVERAL_AT_ONCE
def test_threads_without_a_gate_have_one_effect(
    place: Place, provider: Provider, effects: Effects, clock: Clock
) -> None:
    receiver, barrier = receiver_of(place, provider, clock), threading.Barrier(8)
    receiver.on(provider.type)(effects.had)

    def deliver(_: int) -> Response:
        barrier.wait(60)
        delivery = provider.deliver()
        return receiver.receive(delivery.headers, delivery.body)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(deliver, range(8)))
    assert {answer.status for answer in answers} <= {200, 503}
    assert sum(answer.status == 200 and not replayed(answer) for answer in answers) == 1
    assert effects.of == [provider.event_id]


@COLOURS
async def test_an_error_is_not_stored_and_the_next_delivery_runs(
    place: Place, provider: Provider, effects: Effects, clock: Clock, colour: str
) -> None:
    receiver = receiver_of(place, provider, clock)
    broken = [ValueError("the ledger is away")]

    def handle(event: WebhookEvent[Any]) -> None:
        if place.transactional:
            effects.had(event)
        if broken:
            raise broken.pop()
        if not place.transactional:
            effects.had(event)

    async def ahandle(event: WebhookEvent[Any]) -> None:
        if place.transactional:
            await effects.ahad(event)
        if broken:
            raise broken.pop()
        if not place.transactional:
            await effects.ahad(event)

    receiver.on(provider.type)(ahandle if colour == "async" else handle)
    with pytest.raises(ValueError, match="the ledger is away"):
        await receive(receiver, provider.deliver(), colour)
    assert effects.of == []
    assert not replayed(await receive(receiver, provider.deliver(), colour))
    assert replayed(await receive(receiver, provider.deliver(), colour))
    assert effects.of == [provider.event_id]


@LEASED
async def test_a_waiting_duplicate_gets_a_success(place: Place, effects: Effects, clock: Clock) -> None:
    """With concurrency=wait() the provider need not come again."""
    receiver, gate = receiver_of(place, STRIPE, clock, terms={"concurrency": wait(30)}), Gate()

    @receiver.on(STRIPE.type)
    async def handle(event: WebhookEvent[Any]) -> None:
        await gate.apass_through()
        effects.had(event)

    deliveries = [asyncio.create_task(receive(receiver, STRIPE.deliver(), "async")) for _ in range(2)]
    await asyncio.to_thread(gate.entered.wait, 60)
    await place.seen.until("waiting")
    gate.leave.set()
    assert sorted(replayed(answer) for answer in await asyncio.gather(*deliveries)) == [False, True]
    assert effects.of == [STRIPE.event_id]


@LEASED
async def test_deliveries_that_wait_hold_no_threads(place: Place, effects: Effects, clock: Clock) -> None:
    """A captured delivery, sent again and again, would keep those of other events from their handlers."""
    receiver, gate = receiver_of(place, STRIPE, clock, terms={"concurrency": wait(30)}), Gate()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))

    @receiver.on(STRIPE.type)
    def handle(event: WebhookEvent[Any]) -> None:
        if event.id == STRIPE.event_id:
            gate.pass_through()
        effects.had(event)

    deliveries = [asyncio.create_task(receive(receiver, STRIPE.deliver(), "async")) for _ in range(4)]
    await place.seen.until("waiting")
    other = asyncio.create_task(receive(receiver, STRIPE.deliver("evt_other"), "async"))
    handled, _ = await asyncio.wait({other}, timeout=20)
    gate.leave.set()
    assert handled
    assert sorted(replayed(answer) for answer in await asyncio.gather(*deliveries)) == [False, True, True, True]
    assert sorted(effects.of) == sorted(["evt_other", STRIPE.event_id])


@pytest.mark.slow
@POSTGRESQL_TRANSACTIONAL
@COLOURS
async def test_a_transaction_that_the_database_wants_again_is_run_again(
    place: Place, effects: Effects, clock: Clock, colour: str
) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    wanted = [SerializationFailure("could not serialize access") for _ in range(2)]

    def handle(event: WebhookEvent[Any]) -> None:
        effects.had(event)
        if wanted:
            raise wanted.pop()

    async def ahandle(event: WebhookEvent[Any]) -> None:
        await effects.ahad(event)
        if wanted:
            raise wanted.pop()

    receiver.on(STRIPE.type)(ahandle if colour == "async" else handle)
    assert not replayed(await receive(receiver, STRIPE.deliver(), colour))
    assert effects.of == [STRIPE.event_id]
    wanted[:] = [SerializationFailure("could not serialize access") for _ in range(6)]  # and no more often than that
    answer = await receive(receiver, STRIPE.deliver("evt_never"), colour)
    assert (answer.status, code(answer), wanted) == (503, "store-unavailable", [])
    assert effects.of == [STRIPE.event_id]


@COLOURS
@pytest.mark.parametrize("mode", ["keyed", "transactional"])
async def test_a_store_that_serves_sync_code_only_is_asked_in_threads(
    tmp_path: Path, clock: Clock, colour: str, mode: Any
) -> None:
    """An async handler's claim is entered and left in threads, a sync one's whole course is in one."""
    engine = create_engine(f"sqlite:///{tmp_path / 'sync.db'}")
    boundary = Boundary("sync", store=engine, effects=mode, window=WINDOW, observers=())
    receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
    ran: list[str] = []

    async def ahandle(event: WebhookEvent[Any]) -> None:
        ran.append(event.id)

    receiver.on(STRIPE.type)(ahandle if colour == "async" else lambda event: ran.append(event.id))
    assert [replayed(await receive(receiver, STRIPE.deliver(), colour)) for _ in range(2)] == [False, True]
    assert [replayed(await receive(receiver, STRIPE.deliver(body=OTHER), colour)) for _ in range(2)] == [False, True]
    assert ran == [STRIPE.event_id]
    await boundary.aclose()
    engine.dispose()


@COLOURS
async def test_an_event_whose_record_only_a_newer_version_understands_is_not_acknowledged(
    tmp_path: Path, clock: Clock, colour: str
) -> None:
    """While versions change: what the newer one has begun may be under way."""
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=f"sqlite:///{path}", effects="keyed", window=WINDOW, observers=())
    receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
    receiver.on(STRIPE.type)(lambda event: None)
    assert (await receive(receiver, STRIPE.deliver(), colour)).status == 200
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute("UPDATE retrysafe_records SET state = 'paused'")
    answer = await receive(receiver, STRIPE.deliver(), colour)
    assert (answer.status, code(answer)) == (503, "store-misconfigured")
    await boundary.aclose()


# ------------------------------------------------------------ cancelled, and handlers that do not fit


@MEMORY
async def test_a_cancelled_delivery_comes_to_its_end_in_a_sync_handler(
    place: Place, effects: Effects, clock: Clock
) -> None:
    receiver, gate = receiver_of(place, STRIPE, clock), Gate()

    @receiver.on(STRIPE.type)
    def handle(event: WebhookEvent[Any]) -> None:
        gate.pass_through()
        effects.had(event)

    delivery = asyncio.create_task(receive(receiver, STRIPE.deliver(), "sync-on-a-loop"))
    await asyncio.to_thread(gate.entered.wait, 60)
    delivery.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not delivery.done(), "the handler is left behind"
    gate.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert effects.of == [STRIPE.event_id]
    assert replayed(await receive(receiver, STRIPE.deliver(), "sync-on-a-loop"))


async def test_a_cancelled_async_handler_leaves_the_event_to_the_next_delivery(
    place: Place, effects: Effects, clock: Clock
) -> None:
    receiver, entered = receiver_of(place, STRIPE, clock), asyncio.Event()
    first = True

    @receiver.on(STRIPE.type)
    async def handle(event: WebhookEvent[Any]) -> None:
        nonlocal first
        if first:
            first = False
            entered.set()
            await asyncio.Event().wait()
        await effects.ahad(event)

    delivery = asyncio.create_task(receive(receiver, STRIPE.deliver(), "async"))
    await entered.wait()
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert not replayed(await receive(receiver, STRIPE.deliver(), "async"))
    assert effects.of == [STRIPE.event_id]


@MEMORY
async def test_a_handler_of_the_wrong_colour_is_a_developers_error_and_loses_nothing(
    place: Place, effects: Effects, clock: Clock
) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    receiver.on(STRIPE.type)(effects.ahad)
    delivery = STRIPE.deliver()
    with pytest.raises(ConfigurationError, match="coroutine function"):
        await asyncio.to_thread(receiver.receive, delivery.headers, delivery.body)
    assert not replayed(await receive(receiver, delivery, "async"))

    hidden = receiver_of(place, STRIPE, clock, terms={"effects": "keyed"})
    hidden.on(STRIPE.type)(lambda event: effects.ahad(event))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="returned an awaitable"):
            await receive(hidden, delivery, "sync")
    assert effects.of == [STRIPE.event_id]


@COLOURS
async def test_undone_work_of_a_handler_is_not_stored_as_handled(
    place: Place, effects: Effects, clock: Clock, colour: str
) -> None:
    receiver = receiver_of(place, STRIPE, clock)

    def generator(event: WebhookEvent[Any]) -> Any:
        effects.had(event)
        yield

    async def agenerator(event: WebhookEvent[Any]) -> Any:
        effects.had(event)
        yield

    class Called:
        def __call__(self, event: WebhookEvent[Any]) -> Any:
            yield

    for function in (generator, agenerator, Called(), partial(generator)):
        with pytest.raises(ConfigurationError, match="generator function runs nothing"):
            receiver.on(STRIPE.type)(function)
        with pytest.raises(ConfigurationError, match="generator function runs nothing"):
            receiver.otherwise(function)

    for unfinished in (effects.ahad, generator, agenerator):
        receiver = receiver_of(place, STRIPE, clock)

        def handle(event: WebhookEvent[Any], unfinished: Any = unfinished) -> Any:
            return unfinished(event)

        async def ahandle(event: WebhookEvent[Any], unfinished: Any = unfinished) -> Any:
            return unfinished(event)

        receiver.on(STRIPE.type)(ahandle if colour == "async" else handle)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="awaitable or a generator"):
                await receive(receiver, STRIPE.deliver(), colour)
    assert effects.of == []


@LEASED
async def test_a_task_that_a_sync_handler_has_begun_counts_as_its_effect(
    place: Place, effects: Effects, clock: Clock
) -> None:
    """It runs although the handler was refused, and would run again for every later delivery."""
    receiver, loop, delivery = receiver_of(place, STRIPE, clock), asyncio.get_running_loop(), STRIPE.deliver()
    done = asyncio.Event()

    async def later(event: WebhookEvent[Any]) -> None:
        effects.had(event)
        done.set()

    receiver.on(STRIPE.type)(lambda event: asyncio.wrap_future(asyncio.run_coroutine_threadsafe(later(event), loop)))
    with pytest.raises(ConfigurationError, match="awaitable"):
        await asyncio.to_thread(in_a_loop, receiver, delivery)
    await done.wait()
    assert code(await receive(receiver, delivery, "sync")) == "outcome-unknown"
    assert effects.of == [STRIPE.event_id]


def in_a_loop(receiver: Receiver, delivery: Delivery) -> Response:
    """A sync receiver called on an event loop."""

    async def call() -> Response:
        return receiver.receive(delivery.headers, delivery.body)

    return asyncio.run(call())


@MEMORY
def test_an_error_that_is_suppressed_around_a_handler_is_raised(place: Place, clock: Clock) -> None:
    receiver, delivery = receiver_of(place, STRIPE, clock), STRIPE.deliver()

    @receiver.on(STRIPE.type)
    def handle(event: WebhookEvent[Any]) -> None:
        raise ValueError("not handled")

    for _ in range(2):
        with pytest.raises(ValueError, match="not handled"):
            receiver.receive(delivery.headers, delivery.body, around=lambda: suppress(ValueError))


class Unable:
    """A codec that knows the results of the boundary's functions alone."""

    def encode(self, value: Any, annotation: Any) -> Any:
        raise ResultNotEncodable("not one of ours")

    decode = encode


@COLOURS
async def test_that_an_event_was_handled_is_stored_whatever_the_boundarys_codec(
    place: Place, effects: Effects, clock: Clock, colour: str
) -> None:
    """A success would be answered although the transaction was rolled back."""
    receiver = receiver_of(place, STRIPE, clock, terms={"codec": Unable()})
    handled_by(receiver, effects, STRIPE.type, colour)
    assert [replayed(await receive(receiver, STRIPE.deliver(), colour)) for _ in range(2)] == [False, True]
    assert effects.of == [STRIPE.event_id]


# ------------------------------------------------------------ which handler


@COLOURS
async def test_an_event_without_a_handler_is_acknowledged_and_kept(
    place: Place, provider: Provider, clock: Clock, colour: str
) -> None:
    receiver = receiver_of(place, provider, clock)
    delivery = provider.deliver()
    assert not replayed(await receive(receiver, delivery, colour))
    assert replayed(await receive(receiver, delivery, colour))
    assert place.seen.fields("unhandled") == {"scheme": receiver.scheme.name, "event_type": provider.type}
    event = receiver.verify(delivery.headers, delivery.body)
    assert isinstance(event, WebhookEvent)

    def kept() -> Any:
        with receiver.boundary.claim(event.key, operation=receiver.unhandled, payload=dict(event.payload)) as claim:
            assert claim.replayed
            return claim.result

    assert await asyncio.to_thread(kept) == {"handled": False, "type": provider.type, "body": delivery.body}


@MEMORY
def test_all_other_events_can_have_a_handler(place: Place, effects: Effects, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    receiver.on("customer.created", "customer.updated")(lambda event: pytest.fail("another type"))
    receiver.otherwise(effects.had)
    delivery = STRIPE.deliver()
    assert receiver.receive(delivery.headers, delivery.body).status == 200
    assert effects.of == [STRIPE.event_id]
    assert "unhandled" not in place.seen.names
    with pytest.raises(ConfigurationError, match=r"customer\.updated"):
        receiver.on("customer.updated")(effects.had)
    with pytest.raises(ConfigurationError, match="otherwise"):
        receiver.otherwise(effects.had)
    with pytest.raises(ConfigurationError, match="needs a type of event"):
        receiver.on()(effects.had)


@MEMORY
def test_a_document_is_parsed_for_its_handler_inside_the_claim(place: Place, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    paid: list[int] = []

    @receiver.on(STRIPE.type, parse=lambda document: int(document["data"]["object"]["amount_paid"]))
    def handle(event: WebhookEvent[int]) -> None:
        assert event.claim is not None
        assert len(event.claim.key_for("ledger")) == 36
        paid.append(event.data)

    delivery = STRIPE.deliver()
    bad = STRIPE.deliver("evt_bad", body=b'{"id":"evt_bad","type":"invoice.paid","data":{}}')
    for _ in range(2):
        with pytest.raises(KeyError):  # an error of the handler: nothing is stored
            receiver.receive(bad.headers, bad.body)
        assert receiver.receive(delivery.headers, delivery.body).status == 200
    assert paid == [2000]


@LEASED
@COLOURS
async def test_a_document_that_cannot_be_parsed_leaves_no_doubt(place: Place, clock: Clock, colour: str) -> None:
    receiver = receiver_of(place, STRIPE, clock, terms={"effects": "external"})

    async def never(event: WebhookEvent[int]) -> None:
        pytest.fail("it was not parsed")

    receiver.on(STRIPE.type, parse=int)(never if colour == "async" else lambda event: pytest.fail("not parsed"))
    for _ in range(2):
        with pytest.raises(TypeError):
            await receive(receiver, STRIPE.deliver(), colour)


@MEMORY
def test_an_event_is_dumped_as_it_was_delivered_and_shown_without_its_content(place: Place, clock: Clock) -> None:
    receiver, delivery = receiver_of(place, STRIPE, clock), STRIPE.deliver()
    dumped: list[str] = []

    @receiver.on(STRIPE.type, parse=lambda document: object())
    def handle(event: WebhookEvent[object]) -> None:
        dumped.append(json.dumps(event.dump()))
        assert "amount_paid" not in repr(event)

    receiver.receive(delivery.headers, delivery.body)
    event = receiver.verify(delivery.headers, delivery.body)
    assert isinstance(event, WebhookEvent)
    assert WebhookEvent.load(json.loads(dumped[0])) == event
    assert event.data["data"]["object"]["amount_paid"] == 2000
    assert "amount_paid" not in repr(event)


# ------------------------------------------------------------ what is no event


@COLOURS
@MEMORY
async def test_handshakes_are_answered_only_if_they_are_signed(place: Place, clock: Clock, colour: str) -> None:
    challenge = b'{"token":"Jhj5dZrVaK7ZwHHjRyZWjbDl","challenge":"3eZbrw1aBm2rZgRNFdxV2595","type":"url_verification"}'
    slack = receiver_of(place, SLACK, clock)
    answer = await receive(slack, SLACK.deliver(body=challenge), colour)
    assert (answer.status, answer.body) == (200, b"3eZbrw1aBm2rZgRNFdxV2595")
    assert code(await receive(slack, SLACK.deliver(body=challenge, secret="x"), colour)) == "signature-invalid"

    github, delivery = (
        receiver_of(place, GITHUB, clock),
        GITHUB.deliver(body=b'{"zen":"Design for failure.","hook_id":1}'),
    )
    ping = Delivery({**delivery.headers, "X-GitHub-Event": "ping"}, delivery.body)
    assert (await receive(github, ping, colour)).status == 200
    assert code(await receive(github, tampered(ping), colour)) == "signature-invalid"
    assert set(place.seen.names) == {"delivery_refused"}, "a handshake uses no key"


@pytest.mark.fault(65)
@MEMORY
def test_refused_deliveries_use_no_key_and_are_told(place: Place, provider: Provider, clock: Clock) -> None:
    receiver = receiver_of(place, provider, clock, body_limit=5000)
    receiver.otherwise(lambda event: pytest.fail("nothing was verified"))
    good = provider.deliver()
    cases = {
        "signature-invalid": tampered(good),
        "signature-missing": Delivery({}, good.body),
        "encoding-unsupported": Delivery({**good.headers, "Content-Encoding": "gzip"}, good.body),
        "body-too-large": provider.deliver(body=b"{" + b" " * 5000 + b"}"),
        "payload-invalid": provider.deliver(body=b"[]"),
    }
    statuses = {"encoding-unsupported": 415, "body-too-large": 413}
    for reason, delivery in cases.items():
        answer = receiver.receive(delivery.headers, delivery.body)
        assert (answer.status, code(answer)) == (statuses.get(reason, 400), reason)
        assert place.seen.told[-1].fields == {"scheme": receiver.scheme.name, "refusal": reason}
    assert set(place.seen.names) == {"delivery_refused"}


@MEMORY
def test_a_github_delivery_under_a_forged_id_is_refused_loudly(place: Place, effects: Effects, clock: Clock) -> None:
    receiver = receiver_of(place, GITHUB, clock)
    receiver.otherwise(effects.had)
    delivery = GITHUB.deliver()
    for forgery in ({"X-GitHub-Delivery": "forged"}, {"X-GitHub-Event": "push"}):
        assert receiver.receive(delivery.headers, delivery.body).status == 200
        answer = receiver.receive({**delivery.headers, **forgery}, delivery.body)
        assert (answer.status, code(answer)) == (422, "event-changed")
    assert effects.of == [GITHUB.event_id]
    assert "mismatch" in place.seen.names
    forged = GITHUB.deliver(body=b'{"action":"closed"}')
    receiver = receiver_of(place, GITHUB, clock)
    receiver.on("issues")(effects.had)
    assert receiver.receive({**forged.headers, "X-GitHub-Event": "nothing"}, forged.body).status == 200
    assert not replayed(receiver.receive(forged.headers, forged.body)), "the forgery has used the key up"
    assert effects.of == [GITHUB.event_id] * 2
    effects.forget()
    both = receiver_of(place, GITHUB, clock, scheme=GitHub(GITHUB.secrets[0], identity="delivery"))
    both.otherwise(effects.had)
    for id in ("a", "b", "b"):
        both.receive({**delivery.headers, "X-GitHub-Delivery": id}, delivery.body)
    assert effects.of == ["a", "b"]


# ------------------------------------------------------------ answers to what a claim comes to


@LEASED
@COLOURS
async def test_answers_to_errors_of_the_claim(place: Place, clock: Clock, colour: str) -> None:
    """Doubt makes the provider come again, a failure that is stored makes it stop."""
    runs: list[str] = []

    def handle(event: WebhookEvent[Any]) -> None:
        runs.append(event.id)
        raise ValueError("no")

    async def ahandle(event: WebhookEvent[Any]) -> None:
        handle(event)

    def receiver(**terms: Any) -> Receiver:
        made = receiver_of(place, STRIPE, clock, terms=terms)
        made.on(STRIPE.type)(ahandle if colour == "async" else handle)
        return made

    doubtful, permanent = receiver(effects="external"), receiver(permanent=ValueError)
    for one in (doubtful, permanent):
        with pytest.raises(ValueError, match="no"):
            await receive(one, STRIPE.deliver(), colour)
    answer = await receive(doubtful, STRIPE.deliver(), colour)
    assert (answer.status, code(answer), header(answer, b"retry-after")) == (503, "outcome-unknown", b"60")
    assert replayed(await receive(permanent, STRIPE.deliver(), colour))
    assert runs == [STRIPE.event_id] * 2


@MEMORY
@COLOURS
async def test_work_that_sleeps_lets_the_provider_come_again_when_it_is_time(
    place: Place, clock: Clock, colour: str
) -> None:
    receiver = receiver_of(place, STRIPE, clock, terms={"effects": "keyed"})

    def handle(event: WebhookEvent[Any]) -> None:
        event.claim.sleep("cool off", "2h")

    async def ahandle(event: WebhookEvent[Any]) -> None:
        await event.claim.asleep("cool off", "2h")

    receiver.on(STRIPE.type)(ahandle if colour == "async" else handle)
    for _ in range(2):
        answer = await receive(receiver, STRIPE.deliver(), colour)
        assert (answer.status, code(answer)) == (503, "postponed")
        assert 7100 < int(header(answer, b"retry-after") or 0) <= 7210  # as long as the store took is added


@MEMORY
@COLOURS
@pytest.mark.parametrize("error", [StoredFailure("A", "b"), InProgress(), KeyReused(), OutcomeUnknown()])
async def test_errors_of_another_boundary_are_no_answer_of_this_one(
    place: Place, clock: Clock, colour: str, error: Exception
) -> None:
    """A handler's StoredFailure, taken for the claim's own, would be acknowledged, and the event lost."""
    receiver = receiver_of(place, STRIPE, clock)

    def handle(event: WebhookEvent[Any]) -> None:
        raise error

    async def ahandle(event: WebhookEvent[Any]) -> None:
        raise error

    receiver.on(STRIPE.type)(ahandle if colour == "async" else handle)
    for _ in range(2):
        with pytest.raises(type(error)):
            await receive(receiver, STRIPE.deliver(), colour)


@MEMORY
def test_a_declared_failure_is_acknowledged_and_settled(place: Place, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock)

    @receiver.on(STRIPE.type)
    def handle(event: WebhookEvent[Any]) -> None:
        assert event.claim is not None
        event.claim.fail(ValueError("a customer that we do not know"))

    delivery = STRIPE.deliver()
    assert [replayed(receiver.receive(delivery.headers, delivery.body)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("status", [409, 425, 429])
@MEMORY
def test_the_status_of_a_conflict_can_be_chosen(place: Place, clock: Clock, status: Any) -> None:
    receiver = receiver_of(place, STRIPE, clock, concurrent_status=status)
    delivery = STRIPE.deliver()

    @receiver.on(STRIPE.type)
    def handle(event: WebhookEvent[Any]) -> None:
        answer = receiver.receive(delivery.headers, delivery.body)
        assert (answer.status, code(answer)) == (status, "in-progress")

    assert receiver.receive(delivery.headers, delivery.body).status == 200


@MEMORY
def test_an_event_whose_end_is_forgotten_is_not_acknowledged(place: Place, clock: Clock) -> None:
    """It may have failed: nobody knows any more."""
    receiver = receiver_of(place, GITHUB, clock, terms={"on_expired": "refuse", "memory": "365d"})
    fails = [True]

    @receiver.on(GITHUB.type)
    def handle(event: WebhookEvent[Any]) -> None:
        if fails.pop():
            raise RuntimeError("not now")

    delivery = GITHUB.deliver()
    with pytest.raises(RuntimeError, match="not now"):
        receiver.receive(delivery.headers, delivery.body)
    StoreClock(receiver.boundary).advance(WINDOW)
    answer = receiver.receive(delivery.headers, delivery.body)
    assert (answer.status, code(answer)) == (409, "key-expired")


async def test_a_store_that_is_down_makes_the_provider_come_again(clock: Clock) -> None:
    boundary = Boundary("down", store="redis://127.0.0.1:1/0", window=WINDOW, observers=())
    receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
    receiver.otherwise(lambda event: pytest.fail("nothing was claimed"))
    for colour in ("sync", "async", "sync-on-a-loop"):
        answer = await receive(receiver, STRIPE.deliver(), colour)
        assert (answer.status, code(answer)) == (503, "store-unavailable")
        assert header(answer, b"retry-after") is not None
    await boundary.aclose()


# ------------------------------------------------------------ identity


@COLOURS
async def test_an_event_and_its_retry_from_a_queue_share_a_key(
    place: Place, provider: Provider, effects: Effects, clock: Clock, colour: str
) -> None:
    """Whichever comes first; the worker may have the receiver, or the boundary alone."""
    receiver = receiver_of(place, provider, clock, operation="events")
    handled_by(receiver, effects, provider.type, colour)
    delivery = provider.deliver()
    event = receiver.verify(delivery.headers, delivery.body)
    assert isinstance(event, WebhookEvent)
    queued = WebhookEvent.load(json.loads(json.dumps(event.dump())))
    assert queued == event
    assert queued.body == delivery.body
    clock.now += 86400  # a verified delivery may wait
    if colour == "sync":
        assert await asyncio.to_thread(receiver.handle, queued)
    else:
        assert await receiver.ahandle(queued)
    clock.now = NOW
    assert replayed(await receive(receiver, delivery, colour))
    async with receiver.boundary.claim(queued.key, operation="events", payload=dict(queued.payload)) as claim:
        assert claim.replayed
        assert claim.result == {"handled": True}
    assert effects.of == [provider.event_id]


@MEMORY
def test_two_receivers_act_on_one_event_only_if_their_operations_differ(
    place: Place, effects: Effects, clock: Clock
) -> None:
    boundary, delivery = place.boundary(window=WINDOW), STRIPE.deliver()
    for operation, shared in (("both", True), ("both", True), (None, False)):
        receiver = Receiver(boundary, STRIPE.receiver_scheme(), operation=operation, shared=shared, clock=clock)
        receiver.on(STRIPE.type)(effects.had)
        receiver.receive(delivery.headers, delivery.body)
    assert effects.of == [STRIPE.event_id] * 2
    for operation in (None, "both", "webhook stripe"):
        with pytest.raises(ConfigurationError, match="their keys would collide"):
            Receiver(boundary, STRIPE.receiver_scheme(), operation=operation, clock=clock)
    with pytest.raises(ConfigurationError, match="needs the operation="):
        Receiver(boundary, STRIPE.receiver_scheme(), shared=True, clock=clock)


@MEMORY
def test_two_tenants_cannot_suppress_each_others_events(place: Place, effects: Effects, clock: Clock) -> None:
    """The owner of the first's secret could sign an id of the second's, which is then handled before."""
    boundary, [mine, yours] = place.boundary(window=WINDOW), STANDARD.secrets
    Receiver(boundary, STANDARD.scheme(mine), clock=clock).on(STANDARD.type)(lambda event: None)
    with pytest.raises(ConfigurationError, match="operation="):
        Receiver(boundary, STANDARD.scheme(yours), clock=clock)
    forgery, genuine = (STANDARD.deliver(secret=secret) for secret in (mine, yours))
    receiver = Receiver(boundary, STANDARD.scheme(yours), operation="tenant 2", clock=clock)
    receiver.on(STANDARD.type)(effects.had)
    assert code(receiver.receive(forgery.headers, forgery.body)) == "signature-invalid"
    assert not replayed(receiver.receive(genuine.headers, genuine.body))
    assert effects.of == [STANDARD.event_id]
    Receiver(place.boundary(window=WINDOW), STANDARD.scheme(yours))


@COLOURS
async def test_a_queue_behind_a_receiver_loses_no_event_and_handles_each_once(
    place: Place, effects: Effects, clock: Clock, colour: str
) -> None:
    """The one that keeps events has an operation of its own: under that of the worker, all were handled before."""
    boundary, queue = place.boundary(window=WINDOW), []
    inbox = Receiver(boundary, STRIPE.receiver_scheme(), operation="inbox", clock=clock)
    receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
    handled_by(receiver, effects, STRIPE.type, colour)
    inbox.otherwise(lambda event: queue.append(json.dumps(event.dump())))
    for _ in range(2):
        assert (await receive(inbox, STRIPE.deliver(), colour)).status == 200
    [kept] = queue
    for handled in (True, False):  # a queue may deliver twice
        event = WebhookEvent.load(json.loads(kept))
        found = asyncio.to_thread(receiver.handle, event) if colour == "sync" else receiver.ahandle(event)
        assert await found is handled
    assert effects.of == [STRIPE.event_id]


@MEMORY
def test_a_window_shorter_than_the_provider_delivers_again_is_refused(place: Place, provider: Provider) -> None:
    scheme = provider.receiver_scheme()
    with pytest.raises(ConfigurationError, match=r"window= .* handled twice"):
        Receiver(place.boundary(window=scheme.redelivery_window - 1), scheme)
    Receiver(place.boundary(window=scheme.redelivery_window), scheme)
    if provider.signs_time:
        with pytest.raises(ConfigurationError, match=r"window= .* signature is accepted"):
            Receiver(place.boundary(window="7d"), provider.receiver_scheme(tolerance="85h"))
    with pytest.raises(ConfigurationError, match="concurrent_status"):
        Receiver(place.boundary(window=WINDOW), scheme, concurrent_status=200)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"event\.tx"):
        delivery = STRIPE.deliver()
        event = Receiver(place.boundary(window=WINDOW), STRIPE.receiver_scheme(), clock=lambda: NOW).verify(
            delivery.headers, delivery.body
        )
        assert isinstance(event, WebhookEvent)
        _ = event.tx


class Shop:
    """A provider of somebody's own: base64 of a header, the id in another."""

    name, redelivery_window, body_limit, media_types = "shop", 3600.0, 1 << 16, (JSON,)

    def verify(self, head: Head, body: bytes, now: float) -> None:
        check_signature([digest.hex().encode() for digest in signs([b"secret"], body)], [head.signed("x-shop-hmac")])

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known:
        return Known(str(document["number"]), head.one("x-shop-topic") or "")


@only(lambda name: name in ("memory", "sqlite-transactional"))
def test_a_scheme_of_ones_own(place: Place, effects: Effects) -> None:
    receiver = Receiver(place.boundary(window=WINDOW), Shop())
    receiver.on("orders/paid")(effects.had)
    body = b'{"number": 17}'
    headers = {"X-Shop-Hmac": signs([b"secret"], body)[0].hex(), "X-Shop-Topic": "orders/paid"}
    assert [replayed(receiver.receive(headers, body)) for _ in range(2)] == [False, True]
    assert effects.of == ["17"]
    with pytest.raises(DeliveryRefused, match="signature-invalid"):
        receiver.verify(headers | {"X-Shop-Hmac": "é"}, body)


def test_headers_may_be_lines_of_bytes() -> None:
    head = Head([(b"X-A", b" 1 "), ("x-b", "2")])
    assert (head.one("x-a"), head.one("X-B"), head.one("x-c")) == ("1", "2", None)


@MEMORY
def test_slacks_retries_are_duplicates(place: Place, effects: Effects, clock: Clock) -> None:
    receiver = receiver_of(place, SLACK, clock, scheme=Slack(SLACK.secrets[0]))
    receiver.on("app_mention")(effects.had)
    for number in range(4):
        delivery = SLACK.deliver(now=NOW + number)
        headers = {**delivery.headers, "X-Slack-Retry-Num": str(number), "X-Slack-Retry-Reason": "http_timeout"}
        assert receiver.receive(headers, delivery.body).status == 200
    assert effects.of == [SLACK.event_id]
