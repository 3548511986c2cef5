"""Dramatiq: an actor that runs once for each key, however often its message is delivered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from retrysafe.boundary import Boundary
from retrysafe.claims.decorator import Selector
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.tasks.delivery import Call, Reply, TaskHandler, TaskOptions, Told, refuse_task

with NeedsExtra("dramatiq"):
    from dramatiq import Actor
    from dramatiq import broker as brokers
    from dramatiq.middleware import Middleware, SkipMessage

if TYPE_CHECKING:
    from dramatiq import Broker

P = ParamSpec("P")
R = TypeVar("R")
_AGAIN = "retrysafe_again"
"""The option of a message that was handed back: its broker counts it as a new one."""
_current: ContextVar[tuple[Broker, Any] | None] = ContextVar("retrysafe_message", default=None)


class OnceMiddleware(Middleware):
    """Tells guarded actors which message they handle: ``broker.add_middleware(OnceMiddleware())``."""

    def before_process_message(self, broker: Broker, message: Any) -> None:
        """Note the message."""
        _current.set((broker, message))


def once(
    boundary: Boundary, *, key: Selector, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the function of an actor, sync or async, below ``@dramatiq.actor``.

    ``key`` is a path into its arguments ("order_id") or a callable that takes some of them. See `TaskOptions` for the
    others. Errors of the function are retried by Dramatiq as ever, one that a retry would only meet again is not.
    Called outside of a worker the function is guarded, and its errors are raised.

    Raises `ConfigurationError` if the broker has no `OnceMiddleware`, and above ``@dramatiq.actor``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_task(function, Actor, "@dramatiq.actor", key)
        broker = brokers.global_broker
        if broker is not None and not any(isinstance(one, OnceMiddleware) for one in broker.middleware):
            raise ConfigurationError("Guarded actors need broker.add_middleware(OnceMiddleware()) above them.")
        handler = TaskHandler(boundary, function, key, "dramatiq", options)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            if (message := _message_of(run)) is None:
                return handler.call_guarded(*args, **kwargs)
            return _answer(handler.deliver(_call(args, kwargs, message), redelivered=_may_be_again(message)))

        @functools.wraps(function)
        async def arun(*args: P.args, **kwargs: P.kwargs) -> Any:
            if (message := _message_of(arun)) is None:
                return await handler.call_guarded(*args, **kwargs)
            return _answer(await handler.adeliver(_call(args, kwargs, message), redelivered=_may_be_again(message)))

        made: Any = arun if handler.is_async else run
        decorated: Callable[P, R] = made
        return decorated

    return decorate


def _message_of(function: Callable[..., Any]) -> Any:
    """The message that is being processed, if the function is its actor's and was not called by another one."""
    if (current := _current.get()) is None:
        return None
    broker, message = current
    found: Any = broker.get_actor(message.actor_name).fn
    while found is not None and found is not function:
        found = getattr(found, "__wrapped__", None)
    return None if found is None else message


def _call(args: tuple[Any, ...], kwargs: dict[str, Any], message: Any) -> Call:
    return Call(args, kwargs, message.message_id, message.actor_name, (message.args, message.kwargs))


def _may_be_again(message: Any) -> bool:
    """Tell whether it may have been delivered before: RabbitMQ says so, Redis says nothing."""
    return _AGAIN in message.options or getattr(message, "redelivered", True)


def _answer(reply: Reply) -> Any:
    """The answer in Dramatiq's words.

    A message that is handed back is sent again as it is, and this copy skipped: no retry is spent, no callback called
    and no result stored.
    """
    current = _current.get()
    assert current is not None
    broker, message = current
    if reply.told is Told.RETURN:
        return reply.value
    if reply.told is Told.HAND_BACK:
        broker.enqueue(message.copy(options={_AGAIN: True}), delay=round(reply.pause * 1000))
        message.options["store_results"] = False
        raise SkipMessage(str(reply.error)) from reply.error
    if reply.told is Told.GIVE_UP:
        message.options["throws"] = type(reply.error)
    raise reply.error
