"""A receiver as a Flask view.

app.add_url_rule("/webhooks/stripe", view_func=view(receiver), methods=["POST"])

The body is ``request.get_data()``, so nothing before the view may have read ``request.form`` or the stream.
"""

from __future__ import annotations

from collections.abc import Callable

from werkzeug.exceptions import RequestEntityTooLarge

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import messages
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver

with NeedsExtra("flask"):
    from flask import Response, current_app, request


def view(receiver: Receiver, name: str | None = None) -> Callable[[], Response]:
    """The view, for sync handlers; ``name`` is its endpoint, by default the receiver's operation."""

    def webhook() -> Response:
        try:
            body = _body(receiver.body_limit)
        except DeliveryRefused as refusal:
            return _response(receiver.refuse(refusal))
        return _response(receiver.receive(list(request.headers), body))

    webhook.__name__ = (name or receiver.operation).replace(" ", "_").replace(".", "_")
    return webhook


def _body(limit: int) -> bytes:
    """The received body. Raises `DeliveryRefused` for more than ``limit``, or than Flask accepts."""
    length = request.content_length
    try:
        if length is not None and length > limit:
            raise RequestEntityTooLarge
        cached = length is not None or bool(request.__dict__.get("_cached_data"))
        body = request.get_data() if cached else request.stream.read(limit + 1)
    except RequestEntityTooLarge as error:
        raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes, or Flask's own.") from error
    if len(body) > limit:
        raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes.")
    if length and not body:
        raise ConfigurationError(
            "request.form or request.stream read the body before the view of the webhook, and the signed bytes are "
            "lost. Do not read the body before the view."
        )
    return body


def _response(answer: messages.Response) -> Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    return current_app.response_class(answer.body or b"", answer.status, headers)
