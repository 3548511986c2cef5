"""Publishers on real brokers: what they say of a message is so."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from retrysafe.messaging import Envelope
from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import PublishResult, PublishStatus
from tests.conftest import require

ACKED = PublishResult(PublishStatus.ACKED)


class Bench:
    """A publisher, and how to see what arrived."""

    def __init__(self, publisher: Any, topic: str, arrived: Callable[[], Awaitable[list[Envelope]]]) -> None:
        self.publisher, self.topic, self.arrived = publisher, topic, arrived

    def envelope(self, number: int, **options: Any) -> Envelope:
        made = Envelope(f"id-{number}", self.topic, "A", "placed.v1", "/shop", None, {}, b"%d" % number, "text/plain")
        return made._replace(**options)

    async def publish(self, *envelopes: Envelope) -> list[PublishResult]:
        answer = self.publisher.publish(list(envelopes))
        return list(await answer if hasattr(answer, "__await__") else answer)


async def _rabbitmq(topic: str) -> AsyncIterator[Bench]:
    import aio_pika

    from retrysafe.messaging.brokers.amqp_binding import envelope_from
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    url = os.environ["RETRYSAFE_TEST_RABBITMQ"]
    publisher = RabbitMQPublisher(url)
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})

        async def arrived() -> list[Envelope]:
            found = []
            while (message := await queue.get(fail=False, no_ack=True)) is not None:
                kind = {"datacontenttype": message.content_type}
                found.append(envelope_from(message.headers, kind, message.body, topic))
            return found

        yield Bench(publisher, topic, arrived)
        await publisher.aclose()
        await queue.delete(if_unused=False, if_empty=False)


async def _redis(topic: str) -> AsyncIterator[Bench]:
    import redis

    from retrysafe.messaging.brokers.redis_streams.publisher import RedisStreamsPublisher

    client = redis.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"])
    publisher = RedisStreamsPublisher(client, prefix="tests:", remember="1m")
    yield Bench(publisher, topic, lambda: _entries(topic))
    client.delete(f"tests:{{{topic}}}")
    publisher.close()


async def _redis_async(topic: str) -> AsyncIterator[Bench]:
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

    client = redis.asyncio.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"])
    publisher = AsyncRedisStreamsPublisher(client, prefix="tests:", remember="1m")
    yield Bench(publisher, topic, lambda: _entries(topic))
    await client.delete(f"tests:{{{topic}}}")
    await publisher.aclose()


async def _entries(topic: str) -> list[Envelope]:
    import redis.asyncio

    async with redis.asyncio.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"]) as client:
        found = []
        for _, fields in await client.xrange(f"tests:{{{topic}}}"):
            payload = fields.pop(b"data")
            found.append(envelope_of({name.decode(): value.decode() for name, value in fields.items()}, payload))
        return found


BENCHES = {"rabbitmq": _rabbitmq, "redis": _redis, "redis-async": _redis_async}


@pytest.fixture(params=BENCHES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    require(request.param.partition("-")[0])
    async for made in BENCHES[request.param](f"orders-{secrets.token_hex(6)}"):
        yield made


async def test_acked_messages_have_arrived_whole_and_in_order(bench: Bench) -> None:
    envelopes = [bench.envelope(number) for number in range(50)]
    assert await bench.publish(*envelopes) == [ACKED] * 50
    assert await bench.arrived() == envelopes


async def test_every_attribute_arrives(bench: Bench) -> None:
    envelope = bench.envelope(1, key=None, sequence=7, headers={"traceparent": "00-1-2-01", "tenant": "ключ"})
    envelope = envelope._replace(payload=bytes(range(256)), media_type="application/avro", type="placed.v2")
    assert await bench.publish(envelope) == [ACKED]
    assert await bench.arrived() == [envelope]


async def test_nothing_to_publish_is_nothing(bench: Bench) -> None:
    assert await bench.publish() == []


async def test_repeats_are_told_apart_where_the_broker_remembers(bench: Bench) -> None:
    once, again = await bench.publish(bench.envelope(1)), await bench.publish(bench.envelope(1), bench.envelope(2))
    assert once == [ACKED]
    if "redis" in type(bench.publisher).__module__:
        assert again == [PublishResult(PublishStatus.DUPLICATE), ACKED]
        assert [one.id for one in await bench.arrived()] == ["id-1", "id-2"]
    else:
        assert again == [ACKED, ACKED], "RabbitMQ has no memory: the inbox has"


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
async def test_a_message_that_no_queue_takes_is_not_lost(bench: Bench) -> None:
    published = await bench.publish(bench.envelope(1, topic="nowhere"), bench.envelope(2))
    missing, other = published
    assert (missing.status, other) == (PublishStatus.STALLED, ACKED)
    assert missing.error.startswith(
        "no queue takes 'nowhere': declare it:  retrysafe topics declare --broker URL --topic TOPIC"
    )


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
async def test_a_message_that_cannot_be_written_keeps_none_of_its_wave(bench: Bench) -> None:
    wave = [bench.envelope(1), bench.envelope(2, topic="x" * 256), bench.envelope(3)]
    first, second, third = await bench.publish(*wave)
    assert (first, second.status, third) == (ACKED, PublishStatus.RETRYABLE, ACKED)
    assert await bench.arrived() == [wave[0], wave[2]]


async def test_messages_of_any_size_arrive_in_order(bench: Bench) -> None:
    sizes = [0, 1, 70_000, 131_063, 131_064, 131_065, 500_000, 3]  # RabbitMQ's frames hold 131,064 bytes
    wave = [bench.envelope(number, payload=b"%d" % (number % 10) * size) for number, size in enumerate(sizes)]
    assert await bench.publish(*wave) == [ACKED] * len(wave)
    assert await bench.arrived() == wave


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
async def test_waves_that_are_under_way_together_are_confirmed_each(bench: Bench) -> None:
    waves = [
        [bench.envelope(100 * n + m, topic="nowhere" if m == n else bench.topic) for m in range(50)] for n in (1, 2, 3)
    ]
    answers = await asyncio.gather(*(bench.publish(*wave) for wave in waves))
    for number, answer in enumerate(answers, 1):
        assert [place for place, one in enumerate(answer) if one != ACKED] == [number]
    assert len(await bench.arrived()) == 3 * 49


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
async def test_a_broker_that_is_not_there_has_nothing(bench: Bench) -> None:
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    gone = RabbitMQPublisher("amqp://guest:guest@127.0.0.1:1/")
    (published,) = await gone.publish([bench.envelope(1)])
    assert published.status is PublishStatus.UNAVAILABLE
    await gone.aclose()


async def test_a_redis_that_is_not_there_says_nothing_about_a_message() -> None:
    import redis
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

    for publisher in (
        RedisStreamsPublisher(redis.Redis(port=1, retry=Retry(NoBackoff(), 1))),
        AsyncRedisStreamsPublisher(redis.asyncio.Redis(port=1, retry=AsyncRetry(NoBackoff(), 1))),
    ):
        bench = Bench(publisher, "orders", _nothing)
        published = await bench.publish(bench.envelope(1), bench.envelope(2))
        assert {one.status for one in published} == {PublishStatus.UNAVAILABLE}
        closed = publisher.close() if isinstance(publisher, RedisStreamsPublisher) else publisher.aclose()
        if closed is not None:
            await closed


async def _nothing() -> list[Envelope]:
    return []


async def test_unconfirmed_messages_are_read_before_anything_else_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message that the broker read later would come after the next one that is published."""
    from retrysafe.messaging.brokers.rabbitmq import publisher as module

    async def late(wire: Any, messages: Any, within: float) -> list[BaseException | None]:
        wires.append(wire)
        await confirmed(wire, messages, within)
        return [TimeoutError()] * len(messages)

    confirmed, wires = module.publish_and_confirm, list[Any]()
    require("rabbitmq")
    async for bench in _rabbitmq(f"test-{secrets.token_hex(6)}"):
        with monkeypatch.context() as patched:
            patched.setattr(module, "publish_and_confirm", late)
            (said,) = await bench.publish(bench.envelope(1))
        assert (said.status, wires[0].is_closed) == (PublishStatus.STALLED, True)
        assert await bench.publish(bench.envelope(2)) == [ACKED]
        assert [one.id for one in await bench.arrived()] == ["id-1", "id-2"]


@pytest.fixture
async def redis_bench() -> AsyncIterator[Bench]:
    require("redis")
    async for bench in _redis(f"test-{secrets.token_hex(6)}"):
        yield bench


async def test_entries_that_redis_refuses_are_not_remembered_as_added(redis_bench: Bench) -> None:
    """A mark that stayed without its entry would let the relay remove a message that never left."""
    import redis

    stream = f"tests:{{{redis_bench.topic}}}"
    with redis.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"]) as client:
        client.set(stream, "in the way")
        refused = await redis_bench.publish(redis_bench.envelope(1), redis_bench.envelope(2))
        client.delete(stream)
    assert [one.status for one in refused] == [PublishStatus.STALLED] * 2
    assert "WRONGTYPE" in refused[0].error
    assert await redis_bench.publish(redis_bench.envelope(1)) == [ACKED]
    assert [one.id for one in await redis_bench.arrived()] == ["id-1"]


async def test_entries_that_the_script_cannot_add_are_not_remembered_as_added(redis_bench: Bench) -> None:
    """An error of the script itself ends in the middle of it: the messages after it are added all the same."""
    huge = redis_bench.envelope(1, headers={f"h{n}": "" for n in range(5000)})
    for _ in range(2):
        published = await redis_bench.publish(huge, redis_bench.envelope(2))
        assert published[0].status == PublishStatus.RETRYABLE
    assert published[1].status == PublishStatus.DUPLICATE
    assert [one.id for one in await redis_bench.arrived()] == ["id-2"]


async def test_more_than_one_call_takes_and_several_streams(redis_bench: Bench) -> None:
    """Answers are those of their messages, and each stream keeps its order."""
    import redis

    many = [redis_bench.envelope(n, topic=f"{redis_bench.topic}{'-b' * (n % 2)}") for n in range(450)]
    assert await redis_bench.publish(*many[:3]) == [ACKED] * 3
    published = await redis_bench.publish(*many)
    assert [one.status for one in published] == [PublishStatus.DUPLICATE] * 3 + [PublishStatus.ACKED] * 447
    assert [one.id for one in await redis_bench.arrived()] == [f"id-{n}" for n in range(0, 450, 2)]
    with redis.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"]) as client:
        assert client.delete(f"tests:{{{redis_bench.topic}-b}}")


async def test_odd_texts_and_large_payloads_arrive_in_redis_as_they_were(redis_bench: Bench) -> None:
    """Fields travel as JSON to the script: nothing of them may change on the way."""
    odd = redis_bench.envelope(1, headers={"note": 'nul \0 "quoted" \\ / é 😀 \x7f', "empty": ""}, payload=b"")
    large = redis_bench.envelope(2, payload=bytes(range(256)) * 8192)
    assert await redis_bench.publish(odd, large, large._replace(id="id-3")) == [ACKED] * 3
    assert await redis_bench.arrived() == [odd, large, large._replace(id="id-3")]
