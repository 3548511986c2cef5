"""A receiver as a Django view.

urlpatterns = [path("webhooks/stripe", view(receiver))]

The body is ``request.body``, so nothing before the view may have read it as a stream or, as REST framework does with
``request.data``, parsed it. Bodies over ``DATA_UPLOAD_MAX_MEMORY_SIZE`` (2.5 MB unless set) are refused with 413.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import messages
from retrysafe.http.django import atomic_requests, take_over_atomic_requests
from retrysafe.webhooks.answers import method_not_allowed
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver

with NeedsExtra("django", "django", "asgiref"):
    from django.core.exceptions import RequestDataTooBig
    from django.http import HttpRequest, HttpResponse
    from django.http.request import RawPostDataException


def view(receiver: Receiver) -> Callable[[HttpRequest], HttpResponse]:
    """The view, for sync handlers, without CSRF tokens.

    A transaction of ``ATOMIC_REQUESTS`` surrounds the handler instead of the view. Around the view it would commit
    after the record, which would then say that the event was handled before its effects were committed. A transactional
    boundary uses its own transaction on its alias.
    """

    def webhook(request: HttpRequest) -> HttpResponse:
        body = _body(receiver, request)
        if isinstance(body, messages.Response):
            return _response(body)
        return _response(receiver.receive(_headers(request), body, around=around))

    boundary = receiver.boundary
    made = _exempt(webhook)
    own = boundary.entrypoint.alias if boundary.effects == "transactional" else None
    around = partial(atomic_requests, take_over_atomic_requests(made), own)
    return cast("Callable[[HttpRequest], HttpResponse]", made)


def aview(receiver: Receiver) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """The view on Django's event loop, for async handlers. ``ATOMIC_REQUESTS`` does not apply to it."""

    async def webhook(request: HttpRequest) -> HttpResponse:
        body = _body(receiver, request)
        answer = body if isinstance(body, messages.Response) else await receiver.areceive(_headers(request), body)
        return _response(answer)

    made = _exempt(webhook)
    take_over_atomic_requests(made)
    return cast("Callable[[HttpRequest], Awaitable[HttpResponse]]", made)


def _exempt(webhook: Any) -> Any:
    """Exempt the view from CSRF tokens, as Django's decorator does, which is sync before Django 5."""
    webhook.csrf_exempt = True
    return webhook


def _headers(request: HttpRequest) -> dict[str, str]:
    found: Any = request.headers
    return dict(found)


def _body(receiver: Receiver, request: HttpRequest) -> bytes | messages.Response:
    """The received body, or the answer to a refused request."""
    if request.method != "POST":
        return method_not_allowed()
    limit = receiver.body_limit
    length = messages.length_of(request.META.get("CONTENT_LENGTH") or "0")
    try:
        if length is None:
            raise DeliveryRefused("payload-invalid", "The Content-Length is not a number.")
        if length > limit:
            raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes.")
        body: bytes = request.body
    except RawPostDataException as error:
        raise ConfigurationError(
            "A middleware or REST framework's request.data read the body before the view of the webhook, so the signed "
            "bytes are lost. Exclude the view from them."
        ) from error
    except RequestDataTooBig:
        return receiver.refuse(DeliveryRefused("body-too-large", "The limit is DATA_UPLOAD_MAX_MEMORY_SIZE."))
    except DeliveryRefused as refusal:
        return receiver.refuse(refusal)
    return body


def _response(answer: messages.Response) -> HttpResponse:
    made = HttpResponse(answer.body or b"", status=answer.status)
    del made["Content-Type"]
    for name, value in answer.headers:
        made[name.decode("latin-1")] = value.decode("latin-1")
    return made
