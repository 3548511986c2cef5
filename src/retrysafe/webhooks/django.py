"""A receiver as a Django view.

urlpatterns = [path("webhooks/stripe", view(receiver))]

The body is ``request.body``, so nothing before the view may have read it as a stream or, as REST framework does with
``request.data``, parsed it. Bodies over ``DATA_UPLOAD_MAX_MEMORY_SIZE`` (2.5 MB unless set) are refused with 413.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from retrysafe.errors import ConfigurationError
from retrysafe.http import messages
from retrysafe.webhooks.errors import DeliveryRefused
from retrysafe.webhooks.receiver import Receiver

V = TypeVar("V", bound=Callable[..., Any])


def view(receiver: Receiver) -> Callable[[HttpRequest], HttpResponse]:
    """The view, for sync handlers: without CSRF tokens, and outside the transaction of ``ATOMIC_REQUESTS``.

    That one would commit after the record of the event; a transactional boundary has its own.
    """

    def webhook(request: HttpRequest) -> HttpResponse:
        body = _body(receiver, request)
        answer = body if isinstance(body, messages.Response) else receiver.receive(request.headers, body)
        return _response(answer)

    return _prepared(webhook)


def aview(receiver: Receiver) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """The view on Django's event loop, for async handlers."""

    async def webhook(request: HttpRequest) -> HttpResponse:
        body = _body(receiver, request)
        answer = body if isinstance(body, messages.Response) else await receiver.areceive(request.headers, body)
        return _response(answer)

    return _prepared(webhook)


def _prepared(webhook: V) -> V:
    prepared: V = transaction.non_atomic_requests(csrf_exempt(require_POST(webhook)))
    return prepared


def _body(receiver: Receiver, request: HttpRequest) -> bytes | messages.Response:
    """The body as it came, or the answer to one that is not taken."""
    limit = receiver.body_limit
    declared = request.META.get("CONTENT_LENGTH") or ""
    try:
        if declared.isdecimal() and int(declared) > limit:
            raise DeliveryRefused("body-too-large", f"The limit is {limit} bytes.")
        body: bytes = request.body
    except RawPostDataException as error:
        raise ConfigurationError(
            "The body was read before the webhook's view could: a middleware or REST framework's request.data has "
            "parsed it, and what was signed is lost. Take the view out of their reach."
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
