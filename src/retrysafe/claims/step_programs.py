"""Programs of steps, for a sync and an async driver: they ask for writes and for calls of the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends.driver import arun, run
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.context import ClaimContext
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Steps

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import Joining
    from retrysafe.claims.context import Enclosing


class Put(NamedTuple):
    """Asks to the store, or in the caller's transaction; None: make the table of a file, on a connection of our own."""

    steps: Steps[Any] | None
    joining: Joining | None = None


class Call(NamedTuple):
    """A call of a function of the user's, inside a step."""

    step: Enclosing
    function: Callable[..., Any]
    args: tuple[Any, ...]


Program = Generator[Put | Call, Any, Any]


class Retreat(BaseException):
    """Ends the work of a run that goes back, once it has come to a step that was not done."""


def perform(backend: Backend, program: Program) -> Any:
    """Drive a program in sync code."""
    try:
        asked = next(program)
        while True:
            try:
                answer = _answer_to(backend, asked)
            except BaseException as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        return stop.value


def _answer_to(backend: Backend, asked: Put | Call) -> Any:
    if isinstance(asked, Call):
        with _Inside(asked.step):
            return refuse_awaitable(asked.function(*asked.args))
    steps, joining = asked
    if steps is None:
        return backend.tables.provide("steps")
    if joining is None:
        return run(steps, backend.client())
    if joining.execute is None:
        raise ConfigurationError("tx= belongs to async code: write 'async with', or give a coroutine function.")
    backend.check(joining.execute, joining.place)
    return run(steps, joining.execute)


async def aperform(backend: Backend, program: Program) -> Any:
    """Drive a program in async code; each request to its end, even if the caller is cancelled."""
    try:
        asked = next(program)
        while True:
            try:
                answer = await _aanswer_to(backend, asked)
            except BaseException as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        return stop.value


async def _aanswer_to(backend: Backend, asked: Put | Call) -> Any:
    if isinstance(asked, Call):
        with _Inside(asked.step):
            answer = asked.function(*asked.args)
            return await answer if hasattr(answer, "__await__") else answer
    steps, joining = asked
    if steps is None:
        import asyncio

        return await asyncio.to_thread(backend.tables.provide, "steps")  # it may wait for writers of the file
    if joining is None:
        execute: Any = backend.aclient()
    elif joining.aexecute is None:
        raise ConfigurationError("tx= belongs to sync code: write 'with', or give a plain function.")
    else:
        execute = joining.aexecute
        await backend.acheck(execute, joining.place)
    answer, cancelled = await run_to_completion(arun(steps, execute))
    if cancelled is not None:
        raise cancelled
    return answer


def refuse_awaitable(value: Any) -> Any:
    """The value that a function has returned; refuses one that is still to be awaited."""
    if not hasattr(value, "__await__"):
        return value
    if hasattr(value, "close"):
        value.close()
    raise ConfigurationError(
        "A function of a step returned an awaitable, whose work is not done. In async code give a coroutine function "
        "and await the step, or write 'async with'."
    )


class _Inside:
    """Makes a step the innermost claim of the running code."""

    def __init__(self, step: Enclosing) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._context = ClaimContext(self._step, self._step._transaction)

    def __exit__(self, *_: object) -> None:
        self._context.leave()
