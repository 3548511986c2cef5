"""The receiver: a delivery is verified, and its event handled once, whatever server or queue brings it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, TypeVar, overload

from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.key_spaces import origin_of_caller
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.http.messages import Response
from retrysafe.protocol.keys import check_name
from retrysafe.webhooks.answers import acknowledged, answer_of, refused
from retrysafe.webhooks.deliveries import Head, HeaderLines, WebhookEvent, document_of, event_of
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.handling import Around, Handlers, Handling, unhandled
from retrysafe.webhooks.signatures import Scheme

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ConcurrentStatus = Literal[409, 425, 429, 503]
_CONCURRENT = (409, 425, 429, 503)


class Receiver:
    """Receives the webhooks of one provider: verified, handled once per event, answered so that the provider retries.

    A handler runs inside the claim of its event, as the boundary's ``effects`` promise it. When it raises, nothing is
    stored (but for the boundary's ``permanent`` types, and the doubt that ``effects="external"`` leaves), and the error
    goes on to the framework, whose 500 makes the provider deliver again. Events without a handler are acknowledged,
    and kept as the results of their keys under the operation `unhandled`: once there is a handler, a later delivery is
    handled.

    Arguments:
        boundary: where events are handled once. Its window is at least as long as the provider delivers again.
        scheme: how the provider signs: `StandardWebhooks`, `Stripe`, `GitHub`, `Slack`, or a `Scheme` of your own.
        operation: part of every event's identity; by default "webhook" and the scheme's name, which one receiver of a
            boundary can have. Two receivers of the same scheme need two: what strangers may choose the ids for, such
            as two accounts or tenants with secrets of their own, and endpoints that both act on the same event.
        shared: the events of this ``operation`` are handled once by all receivers that claim it: each of them says so.
        concurrent_status: what a delivery gets while another one of its event is handled: 503, 409, 425 or 429.
        body_limit: bytes of a body over which it is refused with 413; by default what the provider sends at most.
        clock: returns the time, in seconds since the Unix epoch.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(
        self,
        boundary: Boundary,
        scheme: Scheme,
        *,
        operation: str | None = None,
        shared: bool = False,
        concurrent_status: ConcurrentStatus = 503,
        body_limit: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._entry = require_boundary(boundary).entrypoint
        if boundary.window < scheme.redelivery_window:
            raise ConfigurationError(
                f"window= of boundary {boundary.name!r} is {boundary.window / 3600:g} h, and an event of {scheme.name} "
                f"can come again for {scheme.redelivery_window / 3600:g} h, by its provider or while its signature is "
                "accepted: it would be handled twice. Make the window longer."
            )
        if concurrent_status not in _CONCURRENT:
            raise ConfigurationError(f"concurrent_status={concurrent_status!r}: expected 503, 409, 425 or 429.")
        self.boundary = boundary
        self.scheme = scheme
        if shared and not operation:
            raise ConfigurationError("shared=True needs the operation= that is shared.")
        name, origin = operation or f"webhook {scheme.name}", origin_of_caller(1)
        self.operation = boundary.entrypoint.take_operation(
            name, self, origin=origin, shared=shared, key="id of the event, as it is signed"
        )
        self.unhandled = check_name(unhandled(self.operation), "operation")
        """The operation under which events are kept that have no handler."""
        self.body_limit = scheme.body_limit if body_limit is None else body_limit
        self._concurrent_status = concurrent_status
        self._clock = clock
        self._handlers = Handlers()

    # ------------------------------------------------------------ handlers

    @property
    def types(self) -> list[str]:
        """The types of events that have a handler of their own."""
        return self._handlers.types

    @property
    def handlers(self) -> dict[str, Callable[..., Any]]:
        """The functions that handle events, by type."""
        return self._handlers.functions

    @overload
    def on(self, *types: str) -> Callable[[F], F]: ...

    @overload
    def on(
        self, *types: str, parse: Callable[[Any], T]
    ) -> Callable[[Callable[[WebhookEvent[T]], Any]], Callable[[WebhookEvent[T]], Any]]: ...

    def on(self, *types: str, parse: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
        """Decorate the handler, sync or async, of events of these types. Its return value is not used.

        ``parse`` makes of the delivered document what the handler finds as ``event.data``, such as a model's
        ``model_validate``; what it raises is an error of the handler, which has not run. A type has one handler.
        Raises `ConfigurationError` for a second one, and for generator functions.
        """

        def decorate(function: Any) -> Any:
            self._handlers.add(types, function, parse)
            return function

        return decorate

    def otherwise(self, function: F) -> F:
        """Decorate the handler of all events that no other one handles."""
        self._handlers.otherwise(function)
        return function

    # ------------------------------------------------------------ a delivery

    def receive(self, headers: HeaderLines, body: bytes, *, around: Around = nullcontext) -> Response:
        """Verify one delivery, handle its event, and return the answer.

        ``headers`` are as the framework has them; ``body`` is the bytes as they came, before anything read them;
        ``around`` gives what is entered inside the claim around the handler, such as a transaction of the framework's;
        an error that it suppresses is raised nevertheless.
        Raises what the handler raises, and `ConfigurationError`.
        """
        found = self._found(headers, body)
        if isinstance(found, Response):
            return found
        handling = self._handling(found, around)
        try:
            return acknowledged(replayed=not handling.run())
        except RetrysafeError as error:
            return self._answer(handling, error)

    async def areceive(self, headers: HeaderLines, body: bytes) -> Response:
        """`receive` on an event loop. A sync handler runs in a thread, with its claim, and comes to its end there."""
        found = self._found(headers, body)
        if isinstance(found, Response):
            return found
        handling = self._handling(found)
        try:
            return acknowledged(replayed=not await self._arun(handling))
        except RetrysafeError as error:
            return self._answer(handling, error)

    def verify(self, headers: HeaderLines, body: bytes) -> WebhookEvent[Any] | Response:
        """The event of a delivery, which is not handled; or the response to a handshake.

        Raises `DeliveryRefused`. Everything that is read of a body is read after its signature was found right.
        """
        if len(body) > self.body_limit:
            raise DeliveryRefused("body-too-large", f"The limit is {self.body_limit} bytes.")
        head = Head(headers)
        if (head.one("content-encoding") or "identity").lower() != "identity":
            raise DeliveryRefused("encoding-unsupported", "Bodies are verified as they are sent, without an encoding.")
        timestamp = self.scheme.verify(head, body, self._clock())
        document = document_of(head, body, self.scheme.media_types)
        known = self.scheme.identify(head, body, document)
        if isinstance(known, Response):
            return known
        return event_of(self.scheme.name, known, document, body, timestamp)

    # ------------------------------------------------------------ an event

    def handle(self, event: WebhookEvent[Any]) -> bool:
        """Handle an event that was verified, such as one from a queue; False when it was handled before.

        Raises what the claim raises (`InProgress` while another delivery of it is handled), and what the handler
        raises.
        """
        return self._handling(event).run()

    async def ahandle(self, event: WebhookEvent[Any]) -> bool:
        """`handle` on an event loop."""
        return await self._arun(self._handling(event))

    # ------------------------------------------------------------ small things

    def refuse(self, refusal: DeliveryRefused) -> Response:
        """The answer to a delivery that is not taken; the observers are told."""
        self._entry.emit("delivery_refused", self.operation, scheme=self.scheme.name, refusal=refusal.reason)
        return refused(refusal)

    def _found(self, headers: HeaderLines, body: bytes) -> WebhookEvent[Any] | Response:
        try:
            return self.verify(headers, body)
        except DeliveryRefused as refusal:
            return self.refuse(refusal)

    def _handling(self, event: WebhookEvent[Any], around: Around = nullcontext) -> Handling:
        return Handling(self.boundary, self.operation, event, self._handlers.find(event.type), around)

    async def _arun(self, handling: Handling) -> bool:
        """The claim has the colour of the handler, so that both work on one connection."""
        handler = handling.handler
        if self._entry.serves_async if handler is None else handler.is_async:
            return await handling.arun()
        return await handling.arun_in_threads()

    def _answer(self, handling: Handling, error: RetrysafeError) -> Response:
        answer = None if error is handling.raised else answer_of(error, self._concurrent_status)
        if answer is None:
            raise error
        return answer
