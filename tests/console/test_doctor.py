"""The page of the doctor: the store, and the brokers that the console was given."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing

import aio_pika
import pytest

from retrysafe.console import doctor
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.events import Event
from tests.conftest import require
from tests.console.conftest import Deck
from tests.console.visiting import Visitor


@pytest.fixture
def rabbit() -> str:
    require("rabbitmq")
    return os.environ["RETRYSAFE_TEST_RABBITMQ"]


@pytest.fixture
async def queue(rabbit: str) -> AsyncIterator[str]:
    """A queue that is on one node alone."""
    name = f"doctor-{secrets.token_hex(6)}"
    async with await aio_pika.connect(rabbit) as connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=True)
        yield name
        await channel.queue_delete(name)


async def test_a_queue_that_loses_messages_is_shown_with_its_fix(deck: Deck, rabbit: str, queue: str) -> None:
    page = await Visitor(deck.console(brokers=[rabbit], topics=[queue])).get("/doctor")
    assert "rabbitmq-quorum" in page.text
    assert queue in page.text
    assert f"--topic {queue}" in page.text, "the command beside it finds the same"
    assert "guest:guest" not in page.html


async def test_a_broker_that_is_gone_is_a_finding_without_its_password(deck: Deck) -> None:
    require("rabbitmq")
    gone = "amqp://shop:s3cr-t@127.0.0.1:1/"
    page = await Visitor(deck.console(brokers=[gone], topics=["orders"])).get("/doctor")
    assert (page.status, "broker-unreachable" in page.text) == (200, True)
    assert "s3cr-t" not in page.html


@pytest.mark.slow
async def test_brokers_that_never_answer_are_findings_when_their_time_is_over(
    shelf: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("rabbitmq")
    monkeypatch.setattr(doctor, "WITHIN", 3.0)
    told: list[Event] = []
    with ExitStack() as silent:
        ports = [silent.enter_context(closing(socket.create_server(("127.0.0.1", 0)))).getsockname()[1] for _ in "123"]
        brokers = [f"amqp://shop:s3cr-t@127.0.0.1:{port}/" for port in ports]
        page = await Visitor(shelf.console(brokers=brokers, observers=[told.append])).get("/doctor")
    assert page.text.count("It did not answer within 3 s.") == len(brokers)
    assert "s3cr-t" not in page.html
    examined = {event.fields["severity"]: event.fields for event in told if event.name == "doctor_examined"}
    assert (examined["error"]["findings"], examined["error"]["checks"]) == (len(brokers), ("broker-unreachable",))


def test_a_broker_that_cannot_be_examined_is_refused_when_the_console_is_made(deck: Deck) -> None:
    with pytest.raises(ConfigurationError, match="there are no checks for"):
        deck.console(brokers=["sqlite:///broker.db"])
