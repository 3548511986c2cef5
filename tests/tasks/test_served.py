"""The tasks of an application, as `retrysafe describe` and the doctor see them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.cli.application import describe
from tests.tables import each_row


def mail(order: str) -> None:
    """Send the mail."""


def charge(order: str) -> None: ...


def _celery(boundary: Boundary) -> Any:
    from celery import Celery

    from retrysafe.tasks.celery import once

    app = Celery("shop")
    app.task(name="mail")(mail)
    app.task(name="charge")(once(boundary, key="order", operation="charge", sentence="Charge an order once")(charge))
    return app


def _dramatiq(boundary: Boundary) -> Any:
    from dramatiq import actor, set_broker
    from dramatiq import broker as brokers
    from dramatiq.brokers.stub import StubBroker

    from retrysafe.tasks.dramatiq import OnceMiddleware, once

    before, broker = brokers.global_broker, StubBroker()
    broker.add_middleware(OnceMiddleware())
    set_broker(broker)
    actor(actor_name="mail", broker=broker)(mail)
    guarded = once(boundary, key="order", operation="charge", sentence="Charge an order once")(charge)
    actor(actor_name="charge", broker=broker)(guarded)
    brokers.global_broker = before
    return broker


def _taskiq(boundary: Boundary) -> Any:
    from taskiq import InMemoryBroker

    from retrysafe.tasks.taskiq import once

    broker = InMemoryBroker()
    broker.task("mail")(mail)
    guarded = once(boundary, key="order", operation="charge", sentence="Charge an order once")(charge)
    broker.task("charge")(guarded)
    return broker


@each_row("make", [_celery, _dramatiq, _taskiq])
def test_tasks_are_described(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery._state._on_app_finalizers", set())  # Celery shares the tasks of one test with all apps
    with closing(Boundary("payments", store="memory://")) as boundary:
        assert describe([make(boundary)]) == [
            {"task": "charge", "policy": "guarded", "sentence": "Charge an order once"},
            {"task": "mail", "policy": "unguarded", "sentence": "Send the mail."},
        ]
