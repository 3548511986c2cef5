"""Celery: a task that runs once for each key, however often its message is delivered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack

from retrysafe.boundary import Boundary
from retrysafe.claims.decorator import Selector
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.claims.observers import logger
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.tasks.delivery import Call, Reply, TaskHandler, TaskOptions, Told, refuse_task
from retrysafe.tasks.publisher import ROUTE

with NeedsExtra("celery"):
    from celery import Task, current_task
    from celery.exceptions import Ignore, Reject
    from celery.local import Proxy
    from kombu.utils.json import dumps

P = ParamSpec("P")
R = TypeVar("R")
_AGAIN = "retrysafe-again"
"""The header of a task that was handed back: its broker counts it as a new one."""


def once(
    boundary: Boundary, *, key: Selector, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the function of a task, below ``@app.task(acks_late=True, reject_on_worker_lost=True)``.

    ``key`` is a path into its arguments ("order_id") or a callable that takes some of them. See `TaskOptions` for the
    others. Errors of the function are retried as the task says; give it ``dont_autoretry_for=GIVE_UP`` beside
    ``autoretry_for``. Called outside of a worker, or eagerly, the function is guarded and its errors are raised.

    Raises `ConfigurationError` for a coroutine function, which Celery does not run, and above ``@app.task``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_task(function, (Task, Proxy), "@app.task(acks_late=True, reject_on_worker_lost=True)", key)
        if is_coroutine_function(function):
            raise ConfigurationError("Celery runs plain functions: use asyncio.run() in one.")
        handler = TaskHandler(boundary, function, key, "celery", options)
        checked: list[bool] = []

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            task: Any = current_task
            if not task or task.request.called_directly or task.request.is_eager:
                direct: R = handler.call_guarded(*args, **kwargs)
                return direct
            if not checked:
                checked.append(True)
                _warn_of_loss(task)
            request = task.request
            again = bool((request.headers or {}).get(_AGAIN)) or bool((request.delivery_info or {}).get("redelivered"))
            sent = request.args, request.kwargs
            call = Call(args, kwargs, request.id, task.name, sent, headers=_route(request), dumps=dumps)
            reply = handler.deliver(call, redelivered=again)
            if reply.told is Told.HAND_BACK:
                _hand_back(task, reply)
            if reply.told is not Told.RETURN:
                raise reply.error
            value: R = reply.value
            return value

        return run

    return decorate


def _route(request: Any) -> dict[str, str]:
    """The headers by which a dead letter goes back to its queue: the default one may have no worker for it."""
    info = request.delivery_info or {}
    exchange, routing_key = info.get("exchange"), info.get("routing_key")
    if not routing_key:
        return {}
    if not exchange:
        return {ROUTE["queue"]: routing_key}
    return {ROUTE["exchange"]: exchange, ROUTE["routing_key"]: routing_key}


def _hand_back(task: Any, reply: Reply) -> NoReturn:
    """Send the same task again, with its id, chain, group and count of retries, and acknowledge this copy.

    A broker with a visibility timeout would deliver a copy that waits for longer once more by itself.
    """
    request, options = task.request, task.app.conf.broker_transport_options or {}
    longest = options.get("visibility_timeout", float("inf")) / 2
    again = task.signature_from_request(
        request,
        countdown=min(reply.pause, longest),
        retries=request.retries,
        headers={**(request.headers or {}), _AGAIN: True},
    )
    try:
        again.apply_async()
    except Exception as error:
        raise Reject(error, requeue=True) from error
    raise Ignore(str(reply.error)) from reply.error


def _warn_of_loss(task: Any) -> None:
    if not (task.acks_late and task.reject_on_worker_lost):
        logger().warning(
            "Task %r is lost if its worker is killed: give @app.task(acks_late=True, reject_on_worker_lost=True).",
            task.name,
        )
