"""Brokers by TLS: nothing is sent to whom the client does not trust."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.protocol.messages import PublishStatus
from retrysafe.testing.consumers import Trial
from tests.conftest import require
from tests.faults.proxies.tls import Front, fronted
from tests.messaging.harnesses.mqtt import MqttBench
from tests.messaging.harnesses.rabbitmq import RabbitMQBench
from tests.messaging.harnesses.redis_streams import RedisBench

BENCHES: dict[str, Any] = {"mqtt": MqttBench, "rabbitmq": RabbitMQBench, "redis": RedisBench}
SCHEMES = {"mqtt": ("mqtts", "cafile"), "rabbitmq": ("amqps", "cafile"), "redis": ("rediss", "ssl_ca_certs")}


@pytest.fixture(params=BENCHES)
def kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
def front(kind: str, tmp_path: Path) -> Iterator[Front]:
    with fronted(os.environ[f"RETRYSAFE_TEST_{kind.upper()}"], tmp_path) as made:
        yield made


@pytest.mark.slow
async def test_large_and_many_messages_pass_by_tls(kind: str, front: Front) -> None:
    scheme, option = SCHEMES[kind]
    plain = os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    bench = await BENCHES[kind](front.url(plain, scheme, **{option: front.cafile})).open()
    trial = Trial(bench)
    envelopes = [one._replace(payload=bytes(200_000)) for one in trial.envelopes(*"ABCDEFGH" * 5)]
    consumer = bench.make(bench.url)
    said = await bench.publisher.publish(envelopes)
    assert {one.status for one in said} == {PublishStatus.ACKED}
    got: dict[str, bytes] = {}
    while len(got) < len(envelopes):
        found = await consumer.receive(100, 30)
        assert found
        got.update((one.envelope.id, one.envelope.payload) for one in found)
        await consumer.ack(found)
    assert got == {one.id: one.payload for one in envelopes}
    await consumer.aclose()
    await bench.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_whom_nobody_trusts_is_sent_nothing(kind: str, front: Front) -> None:
    scheme, _ = SCHEMES[kind]
    plain = os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    bench = await BENCHES[kind](plain).open()
    consumer = bench.make(front.url(plain, scheme))
    with pytest.raises(Exception, match=r"(?i)certificate verify failed"):
        await consumer.receive(1, 5)
    gc.collect()  # the client of MQTT leaves the socket of a failed handshake to the collector
    await consumer.aclose()
    await bench.close()
