"""NATS, set up wrongly: streams that lose messages. There is one server here, so each stream has one replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nats

from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, unique
from tests.messaging.harnesses.nats import without_stream

ALWAYS = ("nats-replicas",)
WEEK = 7 * 86400
SOUND: dict[str, Any] = {"storage": "file", "max_age": WEEK, "discard": "new"}


def _declared(
    finds: str, severity: Severity, broken: str, made: str, limit: int | None = None, **settings: Any
) -> Setup:
    """A stream with a durable consumer, which is handed a message at most so often."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = ground.service("nats"), unique()
        asyncio.run(_make(url, name, {**SOUND, **settings}, limit))
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            asyncio.run(without_stream(url, name))

    return Setup(broken, made, finds, severity, make, tuple(one for one in ALWAYS if one != finds))


async def _make(url: str, name: str, settings: dict[str, Any], limit: int | None) -> None:
    async with await nats.connect(url) as client:
        streams = client.jetstream()
        await streams.add_stream(name=name, subjects=[name], **settings)
        await streams.add_consumer(name, durable_name="stock", ack_policy="explicit", max_deliver=limit)


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", ground.service("nats"), "--topic", unique()]


BROKEN = (
    Setup("No stream keeps the topic.", "nothing declared", "nats-stream", ERROR, _missing),
    _declared("nats-replicas", WARNING, "A stream is on one server alone.", "one server"),
    _declared(
        "nats-storage",
        ERROR,
        "A restart of the server forgets messages.",
        "`--storage memory`",
        storage="memory",
    ),
    _declared(
        "nats-discard",
        ERROR,
        "A stream that is full removes the oldest messages.",
        "`--discard old --max-msgs 10`",
        discard="old",
        max_msgs=10,
    ),
    _declared(
        "nats-age",
        WARNING,
        "Messages are lost while consumers are down for an hour.",
        "`--max-age 1h`",
        max_age=3600,
    ),
    _declared("nats-retention", WARNING, "Messages outlive every window.", "no `--max-age`", max_age=0),
    _declared(
        "nats-dead-letters",
        WARNING,
        "A message that came too often is handed out no more.",
        "`--max-deliver 5`",
        limit=5,
    ),
)
