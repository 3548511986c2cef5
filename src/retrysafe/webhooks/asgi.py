"""A receiver as an ASGI application, to mount at the path that the provider delivers to.

No middleware may read or change the body. In an application of a framework, use the module of that framework instead,
so that its error reports contain the errors of handlers.
"""

from __future__ import annotations

from retrysafe.http.asgi import Receive, Scope, Send, send_response
from retrysafe.webhooks.answers import method_not_allowed
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver


class WebhookApp:
    """An ASGI application that passes POST requests to its receiver. Errors of a handler reach the server."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"WebhookApp serves HTTP, not {scope['type']!r}: mount it beneath an application.")
        if scope["method"] != "POST":
            await send_response(send, method_not_allowed())
            return
        try:
            body = await read_body(receive, self.receiver.body_limit)
        except DeliveryRefused as refusal:
            await send_response(send, self.receiver.refuse(refusal))
            return
        if body is not None:
            await send_response(send, await self.receiver.areceive(scope["headers"], body))


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when the client left before its end. Raises `DeliveryRefused` for more than ``limit``."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes.")
        if not message.get("more_body", False):
            return bytes(body)
