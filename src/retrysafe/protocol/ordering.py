"""The order of messages, and the share of them that one relay takes at a time.

Messages of one topic and key share a lane, and leave one after the other in the order in which they were written. Lanes
are spread over a fixed number of buckets; a bucket has one relay at a time. Where a topic has partitions, its lanes are
spread over them; a partition has one consumer at a time.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from retrysafe.errors import ConfigurationError

BUCKETS = 64
"""Stored in every message: never to be changed."""

MOST_PARTITIONS = 10_000
"""Of a topic: each is a queue or stream, and a consumer asks them all."""
LARGEST_SEQUENCE = (1 << 63) - 1
"""A sequence is a whole number of at most 63 bits, wherever it is written, carried or applied."""


@lru_cache(4096)
def lane(topic: str, key: str | None, message_id: str) -> int:
    """A number for the lane, as a signed 64-bit integer; a message without a key has one of its own."""
    parts = ("", message_id) if key is None else (topic, key)
    digest = blake2b(digest_size=8, person=b"retrysafe lane")
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")  # arriving text may be anything, and has a lane too
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big", signed=True)


def bucket(lane: int) -> int:
    """The bucket of a lane, from 0."""
    return lane % BUCKETS


def partition(topic: str, key: str | None, message_id: str, partitions: int | None) -> str:
    """The queue or stream that a message goes to: one of `partitions_of` its topic, the same for its whole lane."""
    return topic if partitions is None else f"{topic}.{lane(topic, key, message_id) % partitions}"


def partitions_of(topic: str, partitions: int | None) -> list[str]:
    """The names of all queues or streams of a topic; without partitions it has one, named as itself.

    Raises `ConfigurationError` for a number that is not from 1 to `MOST_PARTITIONS`.
    """
    if partitions is None:
        return [topic]
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(
            f"partitions={partitions} must be from 1 to {MOST_PARTITIONS}, the same for publishers and consumers."
        )
    return [f"{topic}.{number}" for number in range(partitions)]
