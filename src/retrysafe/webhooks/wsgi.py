"""A receiver as a WSGI application (PEP 3333), to mount at the path that the provider delivers to.

No middleware may read or change the body. In an application of a framework, use the module of that framework instead,
so that its error reports contain the errors of handlers.
"""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.http.bodies import Body
from retrysafe.http.policy import Policy
from retrysafe.http.problems import Refusal
from retrysafe.http.wsgi import Environ, Input, StartResponse, request_of, respond
from retrysafe.webhooks.answers import method_not_allowed
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver


class WebhookApp:
    """A WSGI application that passes POST requests to its receiver. Errors of a handler reach the server."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "POST":
            return respond(method_not_allowed(), start_response)
        try:
            body = read_body(environ, self.receiver.body_limit)
        except DeliveryRefused as refusal:
            return respond(self.receiver.refuse(refusal), start_response)
        return respond(self.receiver.receive(request_of(environ).headers, body), start_response)


def read_body(environ: Environ, limit: int) -> bytes:
    """The whole body. Raises `DeliveryRefused` for more than ``limit``, and for a body that is incomplete."""
    try:
        body = Body(request_of(environ), Policy(body_limit=limit, body_memory=limit))
        Input(environ, body).finish()
    except Refusal as refusal:
        large = refusal.code == "request-too-large"
        raise DeliveryRefused("body-too-large" if large else "payload-invalid", refusal.detail) from refusal
    return body.whole or b""
