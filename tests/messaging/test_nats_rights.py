"""NATS where users may do only what they are given: a missing right holds messages up, loses none, and is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing

import nats.errors
import pytest

from retrysafe.doctor import diagnose
from retrysafe.messaging.brokers import nats as broker
from retrysafe.messaging.brokers.nats import NatsConsumer, NatsPublisher
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.conftest import require
from tests.messaging.harnesses.nats import GuardedNats

ENVELOPE = Envelope("01-1", "orders", "order-7", "placed.v1", "/shop", 10, {}, b"{}", "application/json")
SHOP = '{publish: ["orders"], subscribe: ["_INBOX.>"]}'


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedNats]:
    require("nats")
    with closing(GuardedNats(shop=SHOP)) as server:
        asyncio.run(broker.declare(server.url, ["orders", "mails"], stream="docs"))
        yield server


@pytest.mark.slow
async def test_a_subject_that_may_not_be_written_holds_its_own_messages_up(guarded: GuardedNats) -> None:
    async with aclosing(NatsPublisher(guarded.url_of("shop"), timeout="4s")) as publisher:
        refused, passed = await publisher.publish([ENVELOPE._replace(topic="mails"), ENVELOPE])
    assert refused.status is PublishStatus.STALLED
    assert refused.error == 'nats: permissions violation for publish to "mails"'
    assert passed == PublishResult(PublishStatus.ACKED)


@pytest.mark.slow
async def test_a_consumer_without_a_right_says_so(guarded: GuardedNats) -> None:
    async with aclosing(NatsConsumer(guarded.url_of("shop"), "orders", group="mail", timeout="1s")) as consumer:
        with pytest.raises(nats.errors.Error, match=r'permissions violation for publish to "\$js.api.stream.names"'):
            await consumer.receive(1, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("user", "said"), [("shop", "permissions violation"), ("nobody", "Authorization Violation")])
def test_the_doctor_says_so(guarded: GuardedNats, user: str, said: str) -> None:
    (found,) = diagnose(brokers=[guarded.url_of(user)], topics=["orders"], within=20)
    assert found.id == "broker-unreachable"
    assert said in found.evidence
