"""Messages on a channel of aiormq: written together, and each confirmed by itself.

``basic_publish`` costs a task, a timeout, a lock and a write to the socket for every message. Here they cost that
together, and a future each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import pamqp.frame
from aiormq import Channel, spec
from aiormq.abc import ChannelFrame, FrameType
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

_Confirm: TypeAlias = "asyncio.Future[object]"
AT_ONCE, MOST_AT_ONCE = 1 << 16, 100
"""About how many bytes, and how many messages, are written to the socket together."""
AHEAD = 256
"""The number of unconfirmed messages of a channel before no more are written.

RabbitMQ reads no more from the whole connection when some 400 messages of one channel wait for a queue that hangs.
"""


class PublishFrames(NamedTuple):
    """A message as it goes over the wire. Its id must be told: by it the broker says which one it returns."""

    message_id: str
    octets: bytes


def encode_frames(
    wire: Channel, command: spec.Basic.Publish, properties: spec.Basic.Properties, body: bytes
) -> PublishFrames:
    """The frames of a message; raises `ValueError` or `TypeError` for what has no place in one."""
    most = wire.max_content_size - 1
    header = ContentHeader(properties=properties, body_size=len(body))
    bodies = [ContentBody(body[start : start + most]) for start in range(0, len(body), most)]
    frames: list[FrameType | ContentBody] = [command, header, *bodies]
    return PublishFrames(
        properties.message_id or "", b"".join(pamqp.frame.marshal(frame, wire.number) for frame in frames)
    )


async def publish_and_confirm(
    wire: Channel, messages: Sequence[PublishFrames], within: float
) -> list[BaseException | None]:
    """Send them in this order, and wait for the confirms. Returns None for each confirmed message, else the error.

    Never raises the loss of the channel: it is the error of each message that was not confirmed before.
    """
    confirms: dict[int, _Confirm] = {}
    missing: BaseException = ConnectionError("the channel is closed")
    try:
        async with asyncio.timeout(within):
            for portion in _portions(messages):
                await _wait_for_room(wire)
                await _write(wire, portion, confirms)
            if confirms:
                await asyncio.wait(confirms.values())
    except TimeoutError:
        missing = TimeoutError("the broker did not confirm it")
    finally:
        ended = [_error(confirm) if confirm.done() else missing for confirm in confirms.values()]
        _forget(wire, messages, confirms)
    return [*ended, *(missing for _ in messages[len(confirms) :])]


async def _wait_for_room(wire: Channel) -> None:
    while len(wire.confirmations) > AHEAD and not wire.is_closed:
        waited: Iterable[object] = wire.confirmations.values()  # beside futures, marks of returned messages
        pending = [one for one in waited if isinstance(one, asyncio.Future) and not one.done()]
        if not pending:
            return
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _write(wire: Channel, portion: Sequence[PublishFrames], confirms: dict[int, _Confirm]) -> None:
    if wire.is_closed:
        return
    drained = wire.create_future()
    payload = b"".join(message.octets for message in portion)
    await wire.write_queue.put(ChannelFrame(payload, should_close=False, drain_future=drained))
    for message in portion:  # in one step with their place in the queue: the broker numbers what it receives
        wire.delivery_tag += 1
        number, confirm = wire.delivery_tag, wire.create_future()
        confirms[number] = wire.confirmations[number] = confirm
        wire.message_id_delivery_tag[message.message_id] = number
    await asyncio.wait([drained])


def _portions(messages: Sequence[PublishFrames]) -> Iterator[Sequence[PublishFrames]]:
    start = size = 0
    for at, message in enumerate(messages):
        if size and (size + len(message.octets) > AT_ONCE or at - start >= MOST_AT_ONCE):
            yield messages[start:at]
            start, size = at, 0
        size += len(message.octets)
    yield messages[start:]


def _error(confirm: _Confirm) -> BaseException | None:
    return asyncio.CancelledError() if confirm.cancelled() else confirm.exception()


def _forget(wire: Channel, messages: Sequence[PublishFrames], confirms: dict[int, _Confirm]) -> None:
    """Ignore the broker's later answers about them."""
    for message, (number, confirm) in zip(messages, confirms.items(), strict=False):
        if wire.message_id_delivery_tag.get(message.message_id) == number:
            del wire.message_id_delivery_tag[message.message_id]
        confirm.cancel()
