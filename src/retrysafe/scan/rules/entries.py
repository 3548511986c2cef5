"""Handlers and consumers that do something twice when they are called twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from retrysafe.scan.effects import Effect, EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.module import Function
from retrysafe.scan.project import own_nodes
from retrysafe.scan.rules.view import View

HANDLER = Rule(
    "RS101",
    "A handler without a guard repeats its effects",
    Severity.WARNING,
    "A client that gets no answer sends its request again, and so do proxies and people. Nothing recognises the second "
    "request, so what the handler creates, sends or calls happens twice.",
    "Guard the route, and let clients send an `Idempotency-Key`. Where the client owns the id, PUT with an upsert "
    "needs no guard.",
    "reference/http-integrations.md",
    """
from fastapi import FastAPI
from sqlalchemy.orm import Session

from shop.models import Order

app = FastAPI()


@app.post("/orders")
def create(item: str, session: Session):
    session.execute("INSERT INTO orders (item) VALUES (:item)", {"item": item})
    session.commit()
""",
    """
from fastapi import APIRouter
from sqlalchemy.orm import Session

from retrysafe import Boundary
from retrysafe.http.fastapi import Idempotency

orders = Boundary("orders", store="postgresql:///shop", effects="transactional")
router = APIRouter(route_class=Idempotency(orders).route_class)


@router.post("/orders")
def create(item: str, session: Session):
    session.execute("INSERT INTO orders (item) VALUES (:item)", {"item": item})
""",
)
PASSED_BY = Rule(
    "RS102",
    "A guard above the decorator that registers the function",
    Severity.ERROR,
    "A router, a task queue, a signal or a server of tools calls the function that it was given, which is the one "
    "below the decorator. A guard above it is only in the name of the module, and runs for nobody who comes from "
    "outside.",
    "Put the guard, such as `once(…)`, below the decorator that registers, next to the function.",
    "how-to/guard-a-function.md",
    """
from fastapi import FastAPI
from retrysafe import Boundary

payments = Boundary("payments", store="sqlite:///payments.db", effects="keyed")
app = FastAPI()


@payments.once(key="order")
@app.post("/charges/{order}")
def charge(order: str) -> str:
    return order
""",
    """
from fastapi import FastAPI
from retrysafe import Boundary

payments = Boundary("payments", store="sqlite:///payments.db", effects="keyed")
app = FastAPI()


@app.post("/charges/{order}")
@payments.once(key="order")
def charge(order: str) -> str:
    return order
""",
)
CONSUMER = Rule(
    "RS401",
    "A consumer without an inbox repeats its effects",
    Severity.WARNING,
    "Brokers deliver at least once: a message comes again after a crash, a timeout, an error or a rebalance. Nothing "
    "recognises the second delivery, so what the consumer creates, sends or calls happens twice.",
    "Handle the message through an inbox, a task under tasks.celery.once (or dramatiq, taskiq), a record of Lambda "
    "under tasks.aws_lambda.batch, or guard the function with a key of the business.",
    "how-to/inbox.md",
    """
import requests
from celery import shared_task


@shared_task(acks_late=True)
def charge(order, amount):
    requests.post("https://bank.example/charges", json={"order": order, "amount": amount})
""",
    """
import requests
from celery import shared_task
from retrysafe import Boundary, current

payments = Boundary("payments", store="postgresql:///shop", effects="keyed")


@shared_task(acks_late=True)
@payments.once(key="order")
def charge(order, amount):
    headers = {"Idempotency-Key": current().key_for("bank")}
    requests.post("https://bank.example/charges", json={"order": order, "amount": amount}, headers=headers)
""",
)
_ALWAYS = frozenset({EffectKind.CREATE, EffectKind.CALL, EffectKind.SEND})
_ON_PUT = frozenset({EffectKind.CALL})
"""PUT and PATCH of the same representation leave the same rows; calls out are repeated all the same."""


def handlers(view: View) -> Iterator[Finding]:
    """RS101."""
    for handler in view.entry_points.handlers(view.module):
        kinds = _ALWAYS if "POST" in handler.methods else _ON_PUT
        effects = _effects_without_key(view.effects.of_function(view.module, handler.function), kinds)
        if effects:
            verb = "/".join(sorted(handler.methods))
            message = f"{handler.framework} handler of {verb} without a guard {_describe(effects)}."
            yield finding(HANDLER, view.module, handler.function, message)


def guards(view: View) -> Iterator[Finding]:
    """RS102."""
    for guard in view.entry_points.idle_guards(view.module):
        yield finding(PASSED_BY, view.module, guard, "The function that is registered is the one without this guard.")


def consumers(view: View) -> Iterator[Finding]:
    """RS401."""
    for consumer in view.entry_points.consumers(view.module):
        node = consumer.node
        found = view.effects.of_nodes(view.module, own_nodes(node) if isinstance(node, Function) else _inside(node))
        effects = _effects_without_key(found, _ALWAYS)
        if effects:
            message = f"{consumer.title} without a guard {_describe(effects)}; {consumer.because}."
            yield finding(CONSUMER, view.module, node, message)


def _inside(loop: object) -> Iterator:  # type: ignore[type-arg]
    for statement in loop.body:  # type: ignore[attr-defined]
        yield from own_nodes(statement)


def _effects_without_key(effects: Iterable[Effect], kinds: frozenset[EffectKind]) -> list[Effect]:
    return [one for one in effects if one.kind in kinds and not one.keyed]


def _describe(effects: list[Effect]) -> str:
    more = f", and {len(effects) - 1} more" if len(effects) > 1 else ""
    return effects[0].describe() + more
