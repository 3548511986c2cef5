"""A receiver as an endpoint of Starlette or FastAPI.

app.add_route("/webhooks/stripe", endpoint(receiver), methods=["POST"])

The body is what ``await request.body()`` gives, which no other code may have parsed: declare no model for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import messages
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver

with NeedsExtra("starlette"):
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response

_CONSUMED = "Stream consumed"
"""Starlette's error for a body that was read before."""


def endpoint(receiver: Receiver) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint, for ``add_route`` or ``Route``, with ``methods=["POST"]``. What a handler raises, is raised."""

    async def webhook(request: Request) -> Response:
        return await receive(receiver, request)

    return webhook


async def receive(receiver: Receiver, request: Request) -> Response:
    try:
        body = await _read(request, receiver.body_limit)
    except DeliveryRefused as refusal:
        return _response(receiver.refuse(refusal))
    except ClientDisconnect:
        return Response(status_code=400)  # the client has left
    return _response(await receiver.areceive(request.headers.raw, body))


async def _read(request: Request, limit: int) -> bytes:
    """The body; from ``request.body()`` where that was read already."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes.")
    except RuntimeError as error:
        if str(error) != _CONSUMED:
            raise
        raise ConfigurationError(
            "The body was read before the webhook's endpoint could, by request.stream() or request.form(), and what "
            "was signed is lost. Do not read it before the endpoint, or by request.body() alone."
        ) from error
    return bytes(body)


def _response(answer: messages.Response) -> Response:
    made = Response(answer.body or b"", answer.status)
    made.raw_headers = list(answer.headers)
    return made
