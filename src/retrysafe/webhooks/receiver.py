"""The receiver verifies deliveries and handles each event once, whether it comes from a server or a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, TypeVar, overload

from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.key_spaces import origin_of_caller
from retrysafe.entrypoint import CODEC
from retrysafe.errors import ConfigurationError, Postponed, RetrysafeError
from retrysafe.http.messages import Response
from retrysafe.protocol.keys import check_name
from retrysafe.webhooks.answers import acknowledge, answer_of, refuse
from retrysafe.webhooks.deliveries import Head, HeaderLines, WebhookEvent, document_of, event_of
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.handling import Around, Handlers, Handling, operation_without_handler
from retrysafe.webhooks.signatures import Scheme

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ConcurrentStatus = Literal[409, 425, 429, 503]
_CONCURRENT = (409, 425, 429, 503)


class Receiver:
    """Receives the webhooks of one provider: verifies them, handles each event once, and answers so that the provider
    delivers again when it should.

    A handler runs inside the claim of its event, with the guarantees of the boundary's ``effects``. When it raises,
    nothing is stored (except for the boundary's ``permanent`` types, and the unknown outcome of
    ``effects="external"``), and the error reaches the framework, whose status 500 makes the provider deliver again.
    Events without a handler are acknowledged, and stored as the results of their keys under the operation `unhandled`:
    when a handler is added, a later delivery is handled.

    Arguments:
        boundary: the boundary that handles each event once. Its window must be at least as long as the provider
            delivers an event again.
        scheme: the signature scheme of the provider: `StandardWebhooks`, `Stripe`, `GitHub`, `Slack`, or a `Scheme` of
            your own.
        operation: part of every event's identity; by default "webhook" and the scheme's name. Only one receiver of a
            boundary can have an operation. Two receivers of the same scheme need two operations: for senders that
            choose ids independently, such as two accounts or tenants with their own secrets, and for two endpoints that
            both act on the same event.
        shared: lets several receivers share this ``operation``, so that together they handle each event once; each of
            them needs ``shared=True``.
        concurrent_status: the status for a delivery whose event is being handled by another delivery: 503, 409, 425 or
            429.
        body_limit: the largest accepted body in bytes; larger ones are refused with 413. By default the largest that
            the provider sends.
        clock: returns the time, in seconds since the Unix epoch.

    Raises `ConfigurationError` for invalid arguments.
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
        if not hasattr(scheme, "verify"):
            raise ConfigurationError(
                f"scheme= is a {type(scheme).__name__}: give the provider's scheme with its secret, such as "
                "StandardWebhooks(secret) or Stripe(secret)."
            )
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
            name, self, origin=origin, shared=shared, key="id of the event, as it is signed", codec=CODEC
        )
        self.unhandled = check_name(operation_without_handler(self.operation), "operation")
        """The operation under which events without a handler are stored."""
        self.body_limit = scheme.body_limit if body_limit is None else body_limit
        self._concurrent_status = concurrent_status
        self._clock = clock
        self._handlers = Handlers()

    @property
    def _told_apart(self) -> object:
        """The settings of the scheme, such as its secrets: an application that is built again has the same."""
        return getattr(self.scheme, "__dict__", self.scheme)

    # ------------------------------------------------------------ handlers

    @property
    def types(self) -> list[str]:
        """The event types that have their own handler."""
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
        """Decorate the handler, sync or async, of events of these types. Its return value is ignored.

        ``parse`` converts the delivered document to ``event.data``, such as a model's ``model_validate``; its error
        counts as an error of the handler, which is not run. A type has one handler. Raises `ConfigurationError` for a
        second one, and for generator functions.
        """

        if any(callable(one) for one in types):
            raise ConfigurationError('on() needs a type of event: @receiver.on("invoice.paid").')

        def decorate(function: Any) -> Any:
            self._handlers.add(types, function, parse)
            return function

        return decorate

    def otherwise(self, function: F) -> F:
        """Decorate the handler of all events whose type has no handler."""
        self._handlers.otherwise(function)
        return function

    # ------------------------------------------------------------ a delivery

    def receive(self, headers: HeaderLines, body: bytes, *, around: Around = nullcontext) -> Response:
        """Verify one delivery, handle its event, and return the answer.

        ``headers`` are the header fields as the framework provides them; ``body`` is the exact bytes that were
        received; ``around`` returns a context manager that is entered inside the claim, around the handler, such as a
        transaction of the framework; an error that it suppresses is raised nevertheless. Raises the error of the
        handler, and `ConfigurationError`.
        """
        found = self._verify(headers, body)
        if isinstance(found, Response):
            return found
        handling = self._handling(found, around)
        try:
            return acknowledge(replayed=not handling.run())
        except (RetrysafeError, Postponed) as error:
            return self._answer(handling, error)

    async def areceive(self, headers: HeaderLines, body: bytes) -> Response:
        """`receive` on an event loop. A sync handler and its claim run in a thread, to the end."""
        found = self._verify(headers, body)
        if isinstance(found, Response):
            return found
        handling = self._handling(found)
        try:
            return acknowledge(replayed=not await self._arun(handling))
        except (RetrysafeError, Postponed) as error:
            return self._answer(handling, error)

    def verify(self, headers: HeaderLines, body: bytes) -> WebhookEvent[Any] | Response:
        """Verify a delivery without handling it; return its event, or the response to a handshake.

        Raises `DeliveryRefused`, and `ConfigurationError` for a body that is no bytes. Nothing of a body is parsed
        before its signature has been verified.
        """
        if not isinstance(body, bytes | bytearray | memoryview):
            raise ConfigurationError(
                f"body= is a {type(body).__name__}: give the exact bytes that were received, of which the signature "
                "is, before anything has parsed them. Nothing was handled."
            )
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
        """Handle a verified event, such as one from a queue; False when it was handled before.

        Raises the errors of the claim (`InProgress` while another delivery of the event is handled) and of the handler.
        """
        return self._handling(event).run()

    async def ahandle(self, event: WebhookEvent[Any]) -> bool:
        """`handle` on an event loop."""
        return await self._arun(self._handling(event))

    # ------------------------------------------------------------ small things

    def refuse(self, refusal: DeliveryRefused) -> Response:
        """Return the answer to a refused delivery, and emit an event."""
        self._entry.emit("delivery_refused", self.operation, scheme=self.scheme.name, refusal=refusal.reason)
        return refuse(refusal)

    def _verify(self, headers: HeaderLines, body: bytes) -> WebhookEvent[Any] | Response:
        try:
            return self.verify(headers, body)
        except DeliveryRefused as refusal:
            return self.refuse(refusal)

    def _handling(self, event: WebhookEvent[Any], around: Around = nullcontext) -> Handling:
        return Handling(self.boundary, self.operation, event, self._handlers.find(event.type), around)

    async def _arun(self, handling: Handling) -> bool:
        """Choose a sync or async claim as the handler is, so that both use one connection."""
        handler = handling.handler
        if self._entry.serves_async if handler is None else handler.is_async:
            return await handling.arun()
        return await handling.arun_in_threads()

    def _answer(self, handling: Handling, error: RetrysafeError | Postponed) -> Response:
        told = error is handling.raised and not isinstance(error, Postponed)
        answer = None if told else answer_of(error, self._concurrent_status)
        if answer is None:
            raise error
        return answer
