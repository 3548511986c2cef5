"""The checks of the streams of NATS that keep the messages of topics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, warning
from retrysafe.messaging.brokers.nats.connecting import connect
from retrysafe.messaging.brokers.nats.messages import subject_of
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.protocol.checks import Facts

_WITHIN = 4.0
_DAY = 86400
_OFTEN = 1000
"""The number of times that a message may well be handed out if its consumers crash."""


class _StreamSettings(NamedTuple):
    config: StreamConfig
    limits: Mapping[str, int]
    """The largest number of deliveries of a message, of those consumers that have a limit."""


async def _gather(url: str, topics: tuple[str, ...]) -> Facts:
    """The streams of topics, by their names; topics that have none."""
    try:
        connection = await connect(url, None, _WITHIN)
        try:
            with connection.explaining():
                client = connection.client.jetstream(timeout=_WITHIN)
                homes = {topic: await _home(client, topic) for topic in topics}
                streams = {name: await _stream(client, name) for name in {*homes.values()} if name is not None}
        finally:
            await connection.close()
    except nats.errors.TimeoutError:
        raise
    except nats.errors.Error as error:
        raise BrokerUnavailable(str(error)) from error
    return {"missing": [topic for topic, name in homes.items() if name is None], "streams": streams}


async def _home(client: JetStreamContext, topic: str) -> str | None:
    for subject in (subject_of("", topic), f"{topic}.*"):
        with suppress(NotFoundError):
            return await client.find_stream_name_by_subject(subject)
    return None


async def _stream(client: JetStreamContext, name: str) -> _StreamSettings:
    consumers = await client.consumers_info(name)
    limits = {one.name: one.config.max_deliver for one in consumers if one.config.durable_name}
    config = (await client.stream_info(name)).config
    return _StreamSettings(config, {name: limit for name, limit in limits.items() if limit is not None and limit > 0})


def _removes_what_is_old(stream: _StreamSettings) -> bool:
    config = stream.config
    limits = (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    return config.discard != DiscardPolicy.NEW and any(limit is not None and limit > 0 for limit in limits)


CHECKS = checks_of(
    "how-to/nats.md",
    error(
        "nats-stream",
        "missing",
        bool,
        "Are the topics in a stream?",
        "No stream keeps {}.",
        f"Make it with  {declaring()} --stream STREAM",
    ),
    error(
        "nats-storage",
        "streams",
        lambda stream: stream.config.storage == StorageType.MEMORY,
        "Do messages survive a restart of the server?",
        "Kept in memory: {}.",
        "Declare another stream, which keeps messages in files: the storage of one cannot be changed.",
    ),
    warning(
        "nats-replicas",
        "streams",
        lambda stream: (stream.config.num_replicas or 1) < 2,
        "Do messages survive the loss of a server?",
        "One replica: {}.",
        "nats stream edit NAME --replicas 3, on a cluster of three servers",
    ),
    error(
        "nats-discard",
        "streams",
        _removes_what_is_old,
        "Does a stream that is full refuse what is new?",
        "When it is full, it removes the oldest messages, handled or not: {}.",
        "nats stream edit NAME --discard new",
    ),
    warning(
        "nats-age",
        "streams",
        lambda stream: 0 < (stream.config.max_age or 0) < _DAY,
        "Are messages kept while consumers are down?",
        "Messages are lost that wait for less than a day: {}.",
        "nats stream edit NAME --max-age 7d",
    ),
    warning(
        "nats-retention",
        "streams",
        lambda stream: not stream.config.max_age,
        "Do messages end, so that a window can outlive them?",
        "Messages are kept for ever, and can be handed out again after any window: {}.",
        "nats stream edit NAME --max-age 7d, and window= longer than that",
    ),
    warning(
        "nats-dead-letters",
        "streams",
        lambda stream: any(limit < _OFTEN for limit in stream.limits.values()),
        "Is it the inbox that gives messages up?",
        "A durable consumer is no more handed a message that came too often, also when consumers crashed: {}.",
        "nats consumer edit STREAM NAME --max-deliver -1; the inbox counts attempts, and keeps dead letters",
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    found = {name: stream.config.max_age or 0.0 for name, stream in facts["streams"].items()}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
