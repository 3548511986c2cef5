"""Guarded views. The boundaries are made at import, before the test runner renames the databases."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse

from retrysafe import Boundary, current
from tests.django.shop.models import Order

orders = Boundary("orders", store="default", effects="transactional", observers=())
payments = Boundary("payments", store=connection, effects="keyed", observers=())
elsewhere = Boundary("elsewhere", store="other", effects="transactional", observers=())

charged: list[str] = []
mails: list[str] = []


@orders.once(key="key", operation="place")
def place(key: str, item: str, tx: Any = None) -> dict[str, Any]:
    """Make an order, and send a mail when it is committed."""
    order = Order.objects.create(item=item)
    transaction.on_commit(lambda: mails.append(item))
    if item == "broken":
        raise ValueError(item)
    return {"id": order.pk, "item": item}


@payments.once(key="key", operation="pay")
def pay(key: str, amount: int) -> dict[str, Any]:
    """Charge somebody elsewhere."""
    charged.append(current().key_for("bank"))
    return {"amount": amount}


def _body(request: HttpRequest) -> tuple[str, Any]:
    return request.headers["Idempotency-Key"], json.loads(request.body)


def joined(request: HttpRequest) -> JsonResponse:
    """Join the transaction of ATOMIC_REQUESTS."""
    key, item = _body(request)
    return JsonResponse(place(key, item, tx="default"))


@transaction.non_atomic_requests
def own(request: HttpRequest) -> JsonResponse:
    """Let the boundary hold the transaction."""
    key, item = _body(request)
    return JsonResponse(place(key, item))


def inside(request: HttpRequest) -> JsonResponse:
    """Forget tx= under ATOMIC_REQUESTS."""
    key, item = _body(request)
    return JsonResponse(place(key, item))


@transaction.non_atomic_requests
def paid(request: HttpRequest) -> JsonResponse:
    """A leased claim."""
    key, amount = _body(request)
    return JsonResponse(pay(key, amount))


def paid_inside(request: HttpRequest) -> JsonResponse:
    """A leased claim inside the transaction of ATOMIC_REQUESTS, which then fails."""
    key, amount = _body(request)
    Order.objects.create(item="rolled back with the request")
    pay(key, amount)
    raise ZeroDivisionError
