"""Publishes messages of an outbox as tasks: they are sent exactly when the transaction that added them is committed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from retrysafe.backends import registry
from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.observers import logger
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Publisher
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.requests import ask

ROUTE = {name: f"celery-{name}" for name in ("queue", "exchange", "routing_key")}
"""The headers by which a dead letter of a Celery task knows where its task was delivered."""
AS_TEXT = "as_text"
"""Marks the payload of a dead letter whose arguments JSON cannot represent: a person reads them, no task gets them."""


class TaskPublisher:
    """A publisher for `Relay` that sends each message as a task of a Celery application.

    The message's topic is the task's name, its payload ``{"args": [...], "kwargs": {...}}``, and its id the task's id,
    the same on every attempt to send it. It goes where ``app.task`` and ``task_routes`` say, and a dead letter where it
    came from.

    Raises `ConfigurationError` for a broker by AMQP without ``confirm_publish``: a task that the broker did not take
    would count as sent.
    """

    def __init__(self, app: Any) -> None:
        confirmed = (app.conf.broker_transport_options or {}).get("confirm_publish")
        if app.connection_for_write().transport_cls in ("amqp", "pyamqp", "amqps") and not confirmed:
            raise ConfigurationError(
                "TaskPublisher: give app.conf.broker_transport_options = {'confirm_publish': True}. Without it a task "
                "that the broker did not take would count as sent."
            )
        self._app = app

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Send the tasks; return the result of each, in the same order."""
        with self._app.producer_or_acquire() as producer:
            return [self._send(one, producer) for one in envelopes]

    def _send(self, envelope: Envelope, producer: Any) -> PublishResult:
        try:
            args, kwargs = arguments_of(envelope)
        except ConfigurationError as error:
            return PublishResult(PublishStatus.REJECTED, error.detail)
        headers = dict(envelope.headers)
        came_by = {name: headers.pop(header) for name, header in ROUTE.items() if header in headers}
        options = (came_by or self._find_options(envelope.topic)) | {"task_id": envelope.id, "headers": headers}
        self._app.send_task(envelope.topic, args, kwargs, producer=producer, **options)
        return PublishResult(PublishStatus.ACKED)

    def _find_options(self, name: str) -> dict[str, Any]:
        """The options of the task's decorator, such as its queue, which ``send_task`` of itself may not know of."""
        from celery.app.task import extract_exec_options

        declared = extract_exec_options(self._app.tasks.get(name))
        return {option: value for option, value in declared.items() if value is not None}

    def close(self) -> None:
        """Leave the application open: it is the user's."""


def redrive(boundary: Boundary, publisher: Publisher, *, dead_letter_store: Any = None, limit: int = 100) -> int:
    """Send dead letters of a boundary's tasks again that ``retrysafe inbox dead redrive`` has marked; return how many.

    The key of one that has failed is free again; one whose outcome is unknown has to be settled first. ``publisher``
    is a `TaskPublisher`, or one of your own. Call it by hand, or now and then, in a process that has the tasks.
    """
    entry = require_boundary(boundary).entrypoint
    letters = Letters(entry.backend if dead_letter_store is None else registry.connect(dead_letter_store))
    sent = 0
    for operation in entry.guarded:
        for letter in letters.run(ask(letters.inbox.list_marked(entry.name, operation, limit=limit))):
            entry.backend.run(procedures.reopen(entry.backend, letter.arrival.record_key))
            (result,) = publisher.publish([letter.arrival.envelope])
            if result.status in (PublishStatus.ACKED, PublishStatus.DUPLICATE):
                letters.run(ask(letters.inbox.remove(letter.arrival.identity)))
                sent += 1
            else:
                logger().warning("Task %s was not sent again. %s", letter.arrival.envelope.id, result.error)
    return sent


def arguments_of(envelope: Envelope) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a task in a message; raises `ConfigurationError` for any other payload."""
    try:
        call: Any = json.loads(envelope.payload)
    except ValueError:
        call = None
    if isinstance(call, dict) and AS_TEXT in call:
        raise ConfigurationError(
            "Its arguments are no JSON, and were kept as text: send the task anew, its key is free."
        )
    if isinstance(call, dict) and call.keys() <= {"args", "kwargs"}:
        args, kwargs = call.get("args", []), call.get("kwargs", {})
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise ConfigurationError('The payload of a task is {"args": [...], "kwargs": {...}}.')
