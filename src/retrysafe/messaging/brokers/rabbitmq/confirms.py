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
    wire: Channel, parcels: Sequence[PublishFrames], within: float
) -> list[BaseException | None]:
    """Send them in this order, and wait for the confirm of each; what kept it away, where there was none.

    Never raises the loss of the channel, which is told of each message instead.
    """
    confirms: dict[int, _Confirm] = {}
    kept_away: BaseException = ConnectionError("the channel is closed")
    try:
        async with asyncio.timeout(within):
            for portion in _portions(parcels):
                await _room(wire)
                await _write(wire, portion, confirms)
            if confirms:
                await asyncio.wait(confirms.values())
    except TimeoutError:
        kept_away = TimeoutError("the broker did not confirm it")
    finally:
        ended = [_error(confirm) if confirm.done() else kept_away for confirm in confirms.values()]
        _forget(wire, parcels, confirms)
    return [*ended, *(kept_away for _ in parcels[len(confirms) :])]


async def _room(wire: Channel) -> None:
    while len(wire.confirmations) > AHEAD and not wire.is_closed:
        unconfirmed: Iterable[object] = wire.confirmations.values()  # beside futures, marks of returned messages
        pending = [one for one in unconfirmed if isinstance(one, asyncio.Future) and not one.done()]
        if not pending:
            return
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _write(wire: Channel, portion: Sequence[PublishFrames], confirms: dict[int, _Confirm]) -> None:
    if wire.is_closed:
        return
    drained = wire.create_future()
    payload = b"".join(parcel.octets for parcel in portion)
    await wire.write_queue.put(ChannelFrame(payload, should_close=False, drain_future=drained))
    for parcel in portion:  # in one step with their place in the queue: the broker numbers what it receives
        wire.delivery_tag += 1
        number, confirm = wire.delivery_tag, wire.create_future()
        confirms[number] = wire.confirmations[number] = confirm
        wire.message_id_delivery_tag[parcel.message_id] = number
    await asyncio.wait([drained])


def _portions(parcels: Sequence[PublishFrames]) -> Iterator[Sequence[PublishFrames]]:
    start = size = 0
    for at, parcel in enumerate(parcels):
        if size and (size + len(parcel.octets) > AT_ONCE or at - start >= MOST_AT_ONCE):
            yield parcels[start:at]
            start, size = at, 0
        size += len(parcel.octets)
    yield parcels[start:]


def _error(confirm: _Confirm) -> BaseException | None:
    return asyncio.CancelledError() if confirm.cancelled() else confirm.exception()


def _forget(wire: Channel, parcels: Sequence[PublishFrames], confirms: dict[int, _Confirm]) -> None:
    """Ignore the broker's later answers about them."""
    for parcel, (number, confirm) in zip(parcels, confirms.items(), strict=False):
        if wire.message_id_delivery_tag.get(parcel.message_id) == number:
            del wire.message_id_delivery_tag[parcel.message_id]
        confirm.cancel()
