"""Programs of steps, for a sync and an async driver: they ask for writes and for calls of the user's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends.driver import arun, run
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.context import ClaimContext
from retrysafe.errors import (
    ConfigurationError,
)
from retrysafe.protocol.requests import Steps

if TYPE_CHECKING:
    from collections.abc import Generator

    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import Joining
    from retrysafe.claims.step import Step

    Program = Generator["Put | Call", Any, Any]


class Put(NamedTuple):
    """Asks to the store, or in the caller's transaction."""

    steps: Steps[Any]
    joining: Joining | None = None


class Call(NamedTuple):
    """A call of a function of the user's, inside a step."""

    step: Step
    function: Callable[..., Any]
    args: tuple[Any, ...]


class GoingBack(BaseException):
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
            return asked.step.refuse_awaitable(asked.function(*asked.args))
    if asked.joining is None:
        return run(asked.steps, backend.client())
    if asked.joining.execute is None:
        raise ConfigurationError("tx= belongs to async code: write 'async with', or give a coroutine function.")
    backend.check(asked.joining.execute, asked.joining.place)
    return run(asked.steps, asked.joining.execute)


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
    if asked.joining is None:
        answer, cancelled = await run_to_completion(arun(asked.steps, backend.aclient()))
    else:
        if asked.joining.aexecute is None:
            raise ConfigurationError("tx= belongs to sync code: write 'with', or give a plain function.")
        await backend.acheck(asked.joining.aexecute, asked.joining.place)
        answer, cancelled = await run_to_completion(arun(asked.steps, asked.joining.aexecute))
    if cancelled is not None:
        raise cancelled
    return answer


class _Inside:
    """Makes a step the innermost claim of the running code."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._context = ClaimContext(self._step, self._step._transaction)

    def __exit__(self, *_: object) -> None:
        self._context.leave()
