"""FastStream: what its subscribers are given passes an inbox, whose transaction commits before the ack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.extras import NeedsExtra
from retrysafe.messaging.brokers.amqp_binding import envelope_from
from retrysafe.messaging.brokers.redis_streams.entries import envelope_in
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.inbox import HANDLER_OPTIONS, Inbox
from retrysafe.messaging.inbox.message import InboxMessage
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.options import refuse_unknown
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome

with NeedsExtra("faststream"):
    from faststream import BaseMiddleware
    from faststream.message import StreamMessage
    from faststream.middlewares import AckPolicy

_SAFE = (AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR)
_LOOK = 0.25
"""Seconds after which a message that waits for its next attempt looks whether its subscriber is stopping."""
_DATABASE_PAUSE = 1.0
_work: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("retrysafe_faststream")


class InboxMiddleware:
    """Applies the messages of a FastStream broker once: every subscriber's function runs inside the inbox's claim.

    The function finds the claim, and with ``effects="transactional"`` its transaction, by `retrysafe.current`. When it
    returns, the transaction commits, and only then the message is acked. A message that fails is tried again in its
    place, after a pause; one that is given up is in the dead letters, and acked.

    Arguments:
        inbox: where messages are applied once.
        consumer: the consumer's name. With the name of a subscriber's function it is the name in the inbox, which
            must not change.
        options: of `Inbox.handler`, such as ``max_attempts``.

    Call `install` with the broker, when its subscribers are declared or before.
    """

    def __init__(self, inbox: Inbox, consumer: str, **options: Any) -> None:
        refuse_unknown(options, HANDLER_OPTIONS)
        self._inbox, self._consumer, self._options = inbox, consumer, options
        self._handlers: dict[str, Handler[..., Any]] = {}

    def install(self, broker: Any) -> None:
        """Put it around all that the broker's subscribers do, and check them whenever the broker starts.

        Starting raises `ConfigurationError` for a subscriber that could lose messages, before it receives any.
        """
        start = broker.start

        async def check_and_start() -> None:
            self.check(broker)
            await start()

        broker.add_middleware(self)
        broker.start = check_and_start

    def check(self, broker: Any) -> None:
        """Raise `ConfigurationError` for a subscriber whose messages could be lost, or be answered twice."""
        for subscriber in broker.subscribers:
            _check(subscriber, broker.subscribers)

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """The middleware of one message, as FastStream asks for it."""
        return _OneMessage(msg, context=context, inbox=self)

    def handler(self, subscriber: Any) -> Handler[..., Any]:
        """Return the handler for the messages of a subscriber."""
        name = f"{self._consumer}.{subscriber.calls[0].name}"
        if name not in self._handlers:
            self._handlers[name] = self._inbox.handler(name, **self._options)(_run)
        return self._handlers[name]


class _OneMessage(BaseMiddleware[Any, Any]):
    def __init__(self, msg: Any, /, *, context: Any, inbox: InboxMiddleware) -> None:
        super().__init__(msg, context=context)
        self._inbox = inbox

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        """Handle the message and settle it, after what it has done is committed."""
        subscriber = self.context.get("handler_")
        _check(subscriber, [])
        envelope, again = _open(msg)
        result: list[Any] = []

        async def work() -> None:
            result[:] = [await call_next(msg)]

        token = _work.set(work)
        try:
            handled = await self._until_settled(subscriber, envelope, again)
        finally:
            _work.reset(token)
        if handled is None:
            await msg.nack()
            return None
        await msg.ack()
        return result[0] if handled.became is MessageOutcome.HANDLED else None

    async def _until_settled(self, subscriber: Any, envelope: Envelope, again: bool) -> HandleResult | None:
        """Handle a message until it is settled; None when its subscriber stops before."""
        handler = self._inbox.handler(subscriber)
        while subscriber.running:
            try:
                handled = await handler.ahandle(envelope, redelivered=again)
                if handled.again is None:
                    return handled
                pause = handled.again
            except ConfigurationError:
                raise
            except RetrysafeError as error:  # a database that does not answer: no message is to blame
                handler.emit("consumer_failed", error=str(error).partition("\n")[0])
                pause = _DATABASE_PAUSE
            again = True
            await _rest(subscriber, pause)
        return None


async def _rest(subscriber: Any, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while subscriber.running and (left := end - loop.time()) > 0:  # noqa: ASYNC110 - there is no signal of its stop
        await asyncio.sleep(min(_LOOK, left))


async def _run(message: InboxMessage[Any]) -> None:
    """The handler of every subscriber: FastStream's own way from here to the function."""
    await _work.get()()


def _open(msg: StreamMessage[Any]) -> tuple[Envelope, bool]:
    """The envelope, and whether the message may have come before. The function is given the payload as its body."""
    raw = msg.raw_message
    if isinstance(raw, dict):
        envelope, again = envelope_in(raw["data"], raw["channel"]), True
        differs = bool(envelope.id)
    else:
        properties = {
            "id": raw.message_id,
            "type": raw.type,
            "source": raw.app_id,
            "datacontenttype": raw.content_type,
        }
        envelope, again = envelope_from(raw.headers, properties, raw.body, raw.routing_key or ""), bool(raw.redelivered)
        differs = envelope.payload != raw.body  # an event in structured mode
    if differs:
        msg.body, msg.content_type = envelope.payload, envelope.media_type
        msg.clear_cache()
    return envelope, again


def _check(subscriber: Any, others: list[Any]) -> None:
    name = subscriber.calls[0].name if len(subscriber.calls) else type(subscriber).__name__

    def refuse(reason: str, fix: str) -> None:
        raise ConfigurationError(f"The subscriber {name} {reason}: {fix}")

    kind = type(subscriber).__module__.split(".")[:2]
    stream = getattr(subscriber, "stream_sub", None)
    if kind not in (["faststream", "rabbit"], ["faststream", "redis"]) or (kind[1] == "redis" and stream is None):
        refuse("has a broker that keeps nothing for it, or that is not known here", "use RabbitMQ, or a Redis stream.")
    if len(subscriber.calls) != 1:
        refuse("has several functions", "give each a subscriber of its own, whose name is the one in the inbox.")
    if any(call.handler._publishers for call in subscriber.calls):
        refuse("publishes what it returns, after the commit and without it", "add the message to an Outbox instead.")
    if stream is not None:
        _check_stream(subscriber, stream, others, refuse)
    if subscriber.ack_policy not in _SAFE:
        refuse(
            f"has ack_policy={subscriber.ack_policy.name}, which settles what fails, or what is not handled yet",
            "use AckPolicy.MANUAL or AckPolicy.NACK_ON_ERROR.",
        )


def _check_stream(subscriber: Any, stream: Any, others: list[Any], refuse: Callable[[str, str], None]) -> None:
    if stream.group is None or stream.no_ack:
        refuse("reads a stream without settling what it reads", "give its StreamSub a group and a consumer, no no_ack.")
    if stream.batch:
        refuse("takes batches", "use a Subscription with an inbox.batch_handler.")
    rivals = [other.stream_sub for other in others if getattr(other, "stream_sub", None) is not None]
    if others and not any(
        (other.name, other.group) == (stream.name, stream.group) and (other.min_idle_time or other.claim_min_idle_time)
        for other in rivals
    ):
        refuse(
            "reads new entries only: what it has left unsettled, by a crash or a failure, nobody reads again",
            "subscribe the function a second time, with min_idle_time= in the StreamSub.",
        )
