"""Taskiq: a task that runs once for each key, however often its message is delivered."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar, Unpack

from retrysafe.boundary import Boundary
from retrysafe.claims.decorator import Selector
from retrysafe.extras import NeedsExtra
from retrysafe.tasks.delivery import Call, Reply, TaskHandler, TaskOptions, Told, refuse_task

with NeedsExtra("taskiq"):
    from pydantic_core import to_json
    from taskiq import AsyncTaskiqDecoratedTask, Context, TaskiqDepends

P = ParamSpec("P")
R = TypeVar("R")
_CONTEXT = "retrysafe_context"
_LONGEST = 5.0
"""Seconds for which a task waits at most before it is sent again: meanwhile it takes the place of another one."""


def once(
    boundary: Boundary, *, key: Selector, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the function of a task, sync or async, below ``@broker.task``.

    ``key`` is a path into its arguments ("order_id") or a callable that takes some of them; it and the payload know
    nothing of arguments that Taskiq injects, so name ``payload=`` where there are such. See `TaskOptions` for the
    others. Errors of the function are retried by the middlewares of the broker. Called outside of a worker the function
    is guarded, and its errors are raised. Raises `ConfigurationError` above ``@broker.task``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_task(function, AsyncTaskiqDecoratedTask, "@broker.task", key)
        handler = TaskHandler(boundary, function, key, "taskiq", options)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if (context := kwargs.pop(_CONTEXT, None)) is None:
                return handler.call_guarded(*args, **kwargs)
            reply = handler.deliver(_call(args, kwargs, context))
            return _hand_back(context, reply) if reply.told is Told.HAND_BACK else _answer(reply)  # Taskiq awaits it

        @functools.wraps(function)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            if (context := kwargs.pop(_CONTEXT, None)) is None:
                return await handler.call_guarded(*args, **kwargs)
            reply = await handler.adeliver(_call(args, kwargs, context))
            return await _hand_back(context, reply) if reply.told is Told.HAND_BACK else _answer(reply)

        decorated: Callable[P, R] = _inject(arun if handler.is_async else run, function)
        return decorated

    return decorate


def _inject(run: Any, function: Callable[..., Any]) -> Any:
    """Let Taskiq give the task its context, by an argument beside the function's own."""
    kind: Any = Annotated[Context, TaskiqDepends()]
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    rest = [own.pop()] if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    run.__signature__ = signature.replace(parameters=[*own, context, *rest])
    run.__annotations__ = {**function.__annotations__, _CONTEXT: kind}
    return run


def _call(args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Call:
    message = context.message
    return Call(args, kwargs, message.task_id, message.task_name, (message.args, message.kwargs), dumps=_dumps)


def _dumps(sent: Any) -> str:
    """The arguments as JSON, from which Taskiq makes again what their annotations say."""
    return to_json(sent).decode()


def _answer(reply: Reply) -> Any:
    if reply.told is not Told.RETURN:
        raise reply.error
    return reply.value


async def _hand_back(context: Context, reply: Reply) -> NoReturn:
    """Send the same task again after the pause, before this copy is acknowledged; no result is stored."""
    await asyncio.sleep(min(reply.pause, _LONGEST))
    await context.requeue()
    raise AssertionError("requeue() raises")
