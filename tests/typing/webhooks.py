"""Webhooks as users write them; a type checker reads this file, nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import httpx
from fastapi import FastAPI
from flask import Flask

from retrysafe import Boundary
from retrysafe.http.messages import Response
from retrysafe.webhooks import (
    GitHub,
    Head,
    Known,
    Receiver,
    Scheme,
    Slack,
    StandardWebhooks,
    Stripe,
    WebhookEvent,
    asgi,
    django,
    flask,
    starlette,
    wsgi,
)
from retrysafe.webhooks.sender import AsyncSender, Delivery, Endpoint, Message, Sender

boundary = Boundary("hooks", store="sqlite:///hooks.db", window="7d")
schemes: list[Scheme] = [
    StandardWebhooks(["whsec_bmV3", "whsec_b2xk"], headers="svix"),
    Stripe("whsec_x", tolerance="10m"),
    GitHub("secret", identity="delivery"),
    Slack("secret"),
]
receiver = Receiver(boundary, schemes[1], operation="billing", concurrent_status=409)


class Invoice:
    def __init__(self, document: Any) -> None:
        self.amount: int = document["data"]["object"]["amount_paid"]


@receiver.on("invoice.paid", parse=Invoice)
def paid(event: WebhookEvent[Invoice]) -> None:
    assert_type(event.data.amount, int)


@receiver.on("customer.created", "customer.updated")
async def customer(event: WebhookEvent[Any]) -> None:
    assert_type(event.id, str)


@receiver.otherwise
def other(event: WebhookEvent[Any]) -> None:
    print(event.tx, event.type)


class Own:
    name, redelivery_window, body_limit, media_types = "own", 3600.0, 1 << 20, ("application/json",)

    def verify(self, head: Head, body: bytes, now: float) -> int | None:
        return int(head.signed("x-time"))

    def identify(self, head: Head, body: bytes, document: dict[str, Any]) -> Known:
        return Known(document["id"], document["type"])


own = Receiver(boundary, Own())
assert_type(own.receive({"x-time": "1"}, b"{}"), Response)
assert_type(own.verify([(b"x-time", b"1")], b"{}"), WebhookEvent[Any] | Response)


def doors(api: FastAPI, app: Flask) -> list[Any]:
    api.add_route("/hooks", starlette.endpoint(receiver), methods=["POST"])
    app.add_url_rule("/hooks", view_func=flask.view(receiver), methods=["POST"])
    return [asgi.WebhookApp(receiver), wsgi.WebhookApp(receiver), django.view(receiver), django.aview(receiver)]


async def deliver(event: WebhookEvent[Any]) -> Delivery:
    await own.ahandle(WebhookEvent.load(event.dump()))
    message, endpoint = Message.of("order.paid", {"order": 1}), Endpoint("https://example.com/", "whsec_bmV3")
    delivery = Sender(httpx.Client(), max_attempts=1).send(message, endpoint)
    async with httpx.AsyncClient() as client:
        return await AsyncSender(client, deadline="1m").send(message, endpoint, earlier=delivery)
