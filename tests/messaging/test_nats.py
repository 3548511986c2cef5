"""The peculiarities of NATS: turns of a partition, headers, and the server's messages."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from string import ascii_letters
from typing import Any

import nats.errors
import pytest
from cloudevents.core.bindings import http
from nats.aio.msg import Msg

from retrysafe import ConfigurationError, Event
from retrysafe.messaging.brokers.nats import NatsConsumer, NatsPublisher, declare
from retrysafe.messaging.brokers.nats.confirms import result_of
from retrysafe.messaging.brokers.nats.connecting import Forbidden
from retrysafe.messaging.brokers.nats.consumer import _quote
from retrysafe.messaging.brokers.nats.messages import content_of, envelope_from, headers_of, subject_of
from retrysafe.messaging.brokers.nats.pinned import PinnedPartition, ReplyTag
from retrysafe.messaging.cloudevents import Mode
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.messages import Delivery, PublishStatus
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.nats import LARGEST, subjects
from tests.messaging.inboxes import envelope
from tests.tables import each_row

LEASE = 10.0


class Turns:
    """A partition whose server is the test."""

    def __init__(self) -> None:
        self.partition = PinnedPartition("orders.0", "group-orders", LEASE)
        self.partition.reconnect("inbox")

    def message(self, sequence: int, pin: str = "ours", *, now: float = 0.0, delivered: int = 1) -> Delivery | None:
        reply = f"$JS.ACK.stream.group.{delivered}.{sequence}.{sequence}.1795388637700051664.0"
        arrived = Msg(_client=None, subject="orders.0", reply=reply, data=b"", headers={"Nats-Pin-Id": pin})  # type: ignore[arg-type]
        found, self.given_up = self.partition.arrive(arrived, now)
        return found

    def status(self, status: str, description: str = "") -> list[str]:
        headers = {"Status": status, "Description": description}
        said = Msg(_client=None, subject="inbox.1", reply="", data=b"", headers=headers)  # type: ignore[arg-type]
        return self.partition.arrive(said, 0.0)[1]

    def own(self, unsettled: int) -> list[int]:
        found = self.partition.own(unsettled, len(self.partition.held), self.partition.turn)
        return [one.tag.sequence for one in found]

    def asked(self, now: float) -> dict[str, Any] | None:
        found = self.partition.request(now, 200, 1 << 20)
        return None if found is None else json.loads(found[1])


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.mark.fault(52)
def test_a_new_owner_hands_out_nothing_before_all_that_is_unsettled_is_its_own(turns: Turns) -> None:
    assert turns.message(7) is None
    assert turns.own(3) == []
    assert turns.message(5, delivered=2) is None
    assert turns.own(3) == []
    assert turns.message(6, delivered=2) is None
    assert turns.own(3) == [5, 6, 7]
    eighth = turns.message(8)
    assert eighth is not None


def test_messages_that_arrive_during_a_count_of_unsettled_ones_are_not_counted(turns: Turns) -> None:
    turns.message(7)
    held, turn = len(turns.partition.held), turns.partition.turn
    turns.message(8)
    assert turns.partition.own(2, held, turn) == []  # one of the two is somebody else's
    assert turns.own(2) == [7, 8]


def test_an_answer_about_an_earlier_turn_says_nothing(turns: Turns) -> None:
    turns.message(7)
    turn = turns.partition.turn
    turns.message(7, pin="later")
    assert turns.partition.own(1, 1, turn) == []


@pytest.mark.fault(52)
def test_a_newly_pinned_client_gives_up_its_messages(turns: Turns) -> None:
    turns.message(5)
    turns.own(1)
    assert turns.message(6, pin="later") is None
    assert [reply.split(".")[5] for reply in turns.given_up] == ["5"]
    assert list(turns.partition.held) == [6]


@pytest.mark.fault(52)
def test_messages_that_may_have_been_handed_out_again_are_not_settled(turns: Turns) -> None:
    turns.message(5, now=0.0)
    turns.message(6, now=0.0)
    turn = turns.partition.turn
    assert turns.partition.settle(ReplyTag("orders.0", turn, 5), 0.79 * LEASE) is not None
    assert turns.partition.settle(ReplyTag("orders.0", turn, 6), 0.81 * LEASE) is None
    assert turns.partition.give_up_lapsed(0.81 * LEASE)
    assert not turns.partition.held
    turns.message(6, now=LEASE, delivered=2)
    assert turns.partition.settle(ReplyTag("orders.0", turn, 6), LEASE) is None, "it was handed out in an earlier turn"


def test_held_messages_are_kept(turns: Turns) -> None:
    turns.message(5, now=0.0)
    assert list(turns.partition.in_progress(0.3 * LEASE)) == []
    assert len(list(turns.partition.in_progress(0.4 * LEASE))) == 1
    assert not turns.partition.give_up_lapsed(1.1 * LEASE)
    assert turns.partition.give_up_lapsed(1.3 * LEASE)


def test_a_client_that_is_pinned_no_more_gives_up_its_messages(turns: Turns) -> None:
    """Else two wait for each other's messages for ever."""
    turns.asked(0.0)
    turns.message(5)
    assert len(turns.status("423", "Nats-Pin-Id mismatch")) == 1
    assert "id" not in (turns.asked(0.0) or {})


def test_little_is_asked_for_until_the_partition_is_ours(turns: Turns) -> None:
    first = turns.asked(0.0)
    assert first is not None
    assert first["batch"] == 1
    turns.message(5)
    assert turns.asked(0.1) is None
    turns.own(4)
    later = turns.asked(LEASE / 3 + 0.1)
    assert later is not None
    assert (later["batch"], later["id"]) == (3, "ours")
    for sequence in (2, 3, 4):
        turns.message(sequence, delivered=2)
    assert turns.own(4) == [2, 3, 4, 5]
    whole = turns.asked(LEASE)
    assert whole is not None
    assert (whole["batch"], "max_bytes" in whole) == (196, True)


def test_a_message_larger_than_the_room_comes_alone(turns: Turns) -> None:
    turns.asked(0.0)
    turns.message(1)
    turns.own(1)
    assert turns.partition.settle(ReplyTag("orders.0", turns.partition.turn, 1), 0.0) is not None
    turns.partition.request(0.0, 200, 10)
    headers = {"Status": "409", "Description": "Message Size Exceeds MaxBytes"}
    said = Msg(_client=None, subject="inbox.2", reply="", data=b"", headers=headers)  # type: ignore[arg-type]
    turns.partition.arrive(said, 0.0)
    alone = turns.asked(0.0)
    assert alone is not None
    assert (alone["batch"], "max_bytes" in alone) == (1, False)


# ---------------------------------------------------------------- messages


def test_a_header_that_would_be_an_order_to_the_server_is_refused() -> None:
    for name in ("Nats-Rollup", "nats-ttl", "ce-id", "with space", "colon:"):
        with pytest.raises(ValueError, match="cannot be sent"):
            headers_of(envelope("1")._replace(headers={name: "x"}))
    sent = headers_of(envelope("1")._replace(headers={"X-Tenant": "100 %\r\nNats-TTL: 1s"}))
    assert all(value.isascii() and not any(char in value for char in " \r\n") for value in sent.values())
    assert envelope_from(sent, b"", "orders").headers["X-Tenant"] == "100 %\r\nNats-TTL: 1s"


def test_events_of_others_are_read_in_both_modes() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k", "data": {"n": 1}}
    structured = json.dumps(event).encode()
    for headers in (None, {"Content-Type": "application/cloudevents+json; charset=utf-8"}):
        read = envelope_from(headers, structured, "orders")
        assert (read.id, read.source, read.type, read.key, read.payload) == ("1", "/s", "t", "k", b'{"n":1}')
    binary = {"CE-Id": "1", "ce-specversion": "1.0", "ce-source": "/s%20x", "ce-type": "t"}
    assert envelope_from(binary, b"x", "orders").source == "/s x"
    assert envelope_from(None, b'{"item": "book"}', "orders").payload == b'{"item": "book"}'


@each_row("mode", ["binary", "structured"])
def test_the_sdk_of_others_and_ours_understand_each_other(mode: Mode) -> None:
    """The SDK has no binding of NATS; headers and modes of that are those of HTTP."""
    sent = envelope("1")._replace(
        key="ключ", sequence=7, headers={"X-Tenant": "ä"}, payload=b'{"a":1}', media_type="application/json"
    )
    payload, headers = content_of(sent, mode)
    assert "Nats-Msg-Id" in headers
    event: Any = http.from_http_event(http.HTTPMessage(headers, payload))
    told = event.get_attributes()
    assert (told["id"], told["source"], told["type"], told["subject"]) == (sent.id, sent.source, sent.type, "ключ")
    data = event.get_data()
    assert data == {"a": 1} or json.loads(data) == {"a": 1}
    assert envelope_from(headers, payload, sent.topic) == sent
    written = {"binary": http.to_binary_event, "structured": http.to_structured_event}[mode](event)
    read = envelope_from(written.headers, written.body, "their.topic")
    assert (read.id, read.source, read.type, read.key) == (sent.id, sent.source, sent.type, "ключ")
    assert json.loads(read.payload) == {"a": 1}


def test_a_header_that_would_be_the_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="would be read as the payload"):
        content_of(envelope("1")._replace(headers={"data_base64": "x"}), "structured")
    with pytest.raises(ConfigurationError, match="mode="):
        NatsPublisher("nats://localhost", mode="batched")  # type: ignore[arg-type]


@each_row("topic", ["", "a b", "a.*", ">", "a..b", "$JS.API.INFO", ".a"])
def test_a_topic_that_is_no_subject_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="not a subject of NATS"):
        subject_of("", topic)


def test_no_two_durable_consumers_have_one_name() -> None:
    names = ["a.b", "a_b", "a_2e_b", "a b", "ä", "a-b"]
    assert len({_quote(name) for name in names}) == len(names)


@each_row(
    ("said", "status"),
    [
        ({"stream": "S", "seq": 1}, "acked"),
        ({"stream": "S", "seq": 1, "duplicate": True}, "duplicate"),
        ({"nobody": True}, "stalled"),
        ({}, "unknown"),
        ({"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}, "stalled"),
        ({"error": {"code": 429, "err_code": 10167, "description": "too many requests"}}, "stalled"),
        ({"error": {"code": 400, "err_code": 10054, "description": "message size exceeds maximum"}}, "rejected"),
        ({"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence"}}, "retryable"),
        ({"error": {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}}, "unavailable"),
    ],
)
def test_meaning_of_a_streams_answers(said: dict[str, Any], status: str) -> None:
    assert result_of(said).status is PublishStatus(status)


# ---------------------------------------------------------------- on the server


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer() -> None:
    import nats

    require("nats")
    async with bench("nats", lease="5s") as broker:
        trial = Trial(broker)
        await trial.publish("A")
        async with trial.consumer() as one, trial.consumer() as two:
            (found,) = await trial.take(one, 1)
            assert not await two.receive(1, 6.0), "more than a lease"
            async with await nats.connect(broker.url) as client:
                infos = await client.jetstream().consumers_info(broker.topic)
            assert sum(one.num_redelivered or 0 for one in infos) == 0
            await one.ack([found])
        async with trial.consumer() as later:
            await trial.nothing(later)


@pytest.mark.slow
async def test_consumers_share_the_partitions() -> None:
    require("nats")
    async with bench("nats") as broker:
        trial = Trial(broker)
        handled: dict[int, set[str]] = {0: set(), 1: set()}
        done = asyncio.Event()

        async def work(at: int, consumer: Any) -> None:
            while not done.is_set():
                found = await consumer.receive(10, 0.2)
                handled[at] |= {one.partition for one in found}
                await consumer.ack(found)

        async with trial.consumer() as one, trial.consumer() as two, asyncio.timeout(60):
            working = [asyncio.create_task(work(0, one))]
            await trial.publish(*ascii_letters)
            working.append(asyncio.create_task(work(1, two)))
            while len(handled[1]) < 2:
                await trial.publish(*ascii_letters)
            done.set()
            await asyncio.gather(*working)


@pytest.mark.slow
async def test_a_held_backlog_is_handed_over_long_before_the_lease_ends() -> None:
    """A message that is given back must not come back to the request that is still open."""
    require("nats")
    async with bench("nats") as broker:
        broker.options["lease"] = "60s"
        trial = Trial(broker)
        await trial.publish(*ascii_letters * 4)
        async with trial.consumer() as two:
            async with trial.consumer() as one:
                await trial.take(one, 8)
                assert await two.receive(1, 0.2) == []
            async with asyncio.timeout(20):
                assert sorted(numbers(await trial.take(two, 208, settle=True))) == [*range(208)]


@pytest.mark.slow
@pytest.mark.slow
async def test_messages_that_a_stream_no_longer_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    require("nats")
    monkeypatch.setattr("retrysafe.messaging.brokers.nats.consumer._COUNT", 0.0)
    told: list[Event] = []
    async with bench("nats") as broker:
        broker.options.update(prefetch=4, lease="2s", observers=[told.append])
        trial = Trial(broker)
        await trial.publish(*ascii_letters)
        async with trial.consumer() as consumer, await nats.connect(broker.url) as client, asyncio.timeout(60):
            held = await trial.take(consumer, 4)
            partitions = consumer._session._partitions.values()  # type: ignore[attr-defined]
            while sum(one._counted[1] for one in partitions if one._counted) != 36:  # noqa: ASYNC110 - 4 of each are held
                await asyncio.sleep(0.05)
            await client.jetstream().purge_stream(broker.topic)
            while sum(one.fields["messages"] for one in told) < 36:  # noqa: ASYNC110 - another task counts
                await asyncio.sleep(0.05)
            await consumer.ack(held)
        assert {(one.name, one.fields["group"]) for one in told} == {("messages_trimmed", "inventory")}
        assert sum(one.fields["messages"] for one in told) == 36


async def test_the_window_is_read_from_the_stream() -> None:
    require("nats")
    async with bench("nats") as broker, Trial(broker).consumer() as consumer:
        assert consumer.redelivery_window is None
        await consumer.receive(1, 0.0)
        assert consumer.redelivery_window == 7 * 86400


@pytest.mark.slow
async def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"topics": []}, {"group": ""}, {"prefetch": 0}, {"prefetch_bytes": 0}):
        with pytest.raises(ConfigurationError, match="must not be empty"):
            NatsConsumer(**{"url": "nats://localhost", "topics": "orders", "group": "mail", **wrong})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not a subject"):
        await declare("nats://localhost", "a b", stream="s")
    require("nats")
    async with subjects() as made:
        with pytest.raises(ConfigurationError, match="refuses the stream"):
            await declare(made.url, made.topic, stream="another")


@pytest.mark.slow
async def test_a_topic_that_is_no_subject_keeps_no_other() -> None:
    require("nats")
    async with subjects() as made:
        said = await made.publish(made.envelope(1, topic="a b"), made.envelope(2))
        assert [one.status for one in said] == [PublishStatus.RETRYABLE, PublishStatus.ACKED]


@pytest.mark.slow
async def test_headers_count_for_the_size_of_a_message() -> None:
    """The server hangs up on a message that is too large with its headers."""
    require("nats")
    async with subjects() as made:
        large = made.envelope(1, payload=b"x" * (LARGEST - 10))
        said = await made.publish(large, made.envelope(2))
        assert [one.status for one in said] == [PublishStatus.REJECTED, PublishStatus.ACKED]


async def test_a_topic_that_is_missing_is_told() -> None:
    require("nats")
    async with subjects() as made:
        consumer = NatsConsumer(made.url, "nowhere", group="g")
        with pytest.raises(QueueMissing, match=r"'nowhere'.*declare it:  retrysafe topics declare"):
            await consumer.receive(1, 0.1)
        await consumer.aclose()


async def test_a_server_that_is_not_there_is_told_at_once() -> None:
    publisher = NatsPublisher("nats://127.0.0.1:9")
    (said,) = await publisher.publish([envelope("1")])
    assert said.status is PublishStatus.UNAVAILABLE
    await publisher.aclose()


@pytest.mark.slow
async def test_a_message_is_no_answer_of_the_server_whatever_its_headers_say() -> None:
    require("nats")
    async with bench("nats") as broker:
        trial = Trial(broker)
        headers = {"Status": "409", "Description": "Consumer Deleted"}
        envelopes = [one._replace(headers=headers, payload=b"") for one in trial.envelopes("A", "A")]
        await broker.publish(envelopes)
        async with trial.consumer() as consumer:
            found = await trial.take(consumer, 2)
            assert [one.envelope.headers for one in found] == [headers, headers]
            await consumer.ack(found)
        async with trial.consumer() as later:
            await trial.nothing(later)


@pytest.mark.slow
async def test_a_durable_consumer_that_is_deleted_is_made_again() -> None:
    import nats

    require("nats")
    async with bench("nats") as broker:
        trial = Trial(broker)
        await trial.publish("A")
        async with trial.consumer() as consumer:
            await consumer.ack(await trial.take(consumer, 1))
            async with await nats.connect(broker.url) as client:
                for one in await client.jetstream().consumers_info(broker.topic):
                    await client.jetstream().delete_consumer(broker.topic, one.name)
            await trial.publish("A")
            seen: set[int] = set()
            async with asyncio.timeout(30):
                while 1 not in seen:
                    seen |= set(numbers(await consumer.receive(10, 1.0)))


@pytest.mark.slow
async def test_a_server_that_greets_nobody_is_hung_up_on() -> None:
    """The library leaves such a connection open: a consumer that tries again and again would gather them."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        consumer = NatsConsumer(f"nats://127.0.0.1:{mute.getsockname()[1]}", "orders", group="g", timeout="0.2s")
        with pytest.raises((OSError, TimeoutError, nats.errors.Error)):
            await consumer.receive(1, 1)
        accepted, _ = mute.accept()
        with accepted:
            accepted.settimeout(10)
            assert await asyncio.to_thread(accepted.recv, 1) == b""
        await consumer.aclose()


def test_refusals_of_the_server_are_known_by_subject_and_time() -> None:
    forbidden = Forbidden()
    forbidden.note('nats: permissions violation for publish to "orders.1"')
    later = time.monotonic()
    for number in range(2, 100):
        for _ in range(2):
            forbidden.note(f'nats: permissions violation for publish to "orders.{number}"')
    forbidden.note("nats: slow consumer")
    assert forbidden.since(0.0, "Orders.1") == 'nats: permissions violation for publish to "orders.1"'
    assert forbidden.since(later, "orders.1") is None
    assert forbidden.since(later, "orders.2") == 'nats: permissions violation for publish to "orders.2"'
    assert forbidden.since(later) == 'nats: permissions violation for publish to "orders.99"'
    assert forbidden.since(0.0, "mails") is None


def test_no_more_forbidden_subjects_are_remembered_than_one_client_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.messaging.brokers.nats.connecting._SUBJECTS", 2)
    forbidden = Forbidden()
    for name in ("a", "b", "a", "c"):
        forbidden.note(f'permissions violation for publish to "{name}"')
    assert [bool(forbidden.since(0.0, name)) for name in ("a", "b", "c")] == [True, False, True]
