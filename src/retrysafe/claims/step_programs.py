"""Drivers of the programs of steps, which ask the store, or the caller's transaction, and call the user's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe import lazy
from retrysafe.backends.driver import arun, run
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.context import ClaimContext
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Ask, Program, as_it_is

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import Joining
    from retrysafe.claims.context import Enclosing
    from retrysafe.protocol.client import Executor


class Call(NamedTuple):
    """A call of a function of the user's, inside a step."""

    step: Enclosing
    function: Callable[..., Any]
    args: tuple[Any, ...]


class Retreat(BaseException):
    """Ends the work of a run that goes back, once it has come to a step that was not done."""


def call(step: Enclosing, function: Callable[..., Any], *args: Any) -> Program[Any]:
    """Call a function of the user's, whose errors are no answers of the store, to be asked again."""
    value, error = yield Ask(Call(step, function, args), as_it_is)
    if error is not None:
        raise error
    return value


def perform(backend: Backend, program: Program[Any], joining: Joining | None = None) -> Any:
    """Drive a program in sync code."""
    return drive(program, client_of(backend, joining))


def client_of(backend: Backend, joining: Joining | None) -> Executor:
    """The executor of sync code's steps; makes the table of a file at its first use."""
    if joining is None:
        if _lacks_table(backend):
            backend.tables.provide("steps")
        return backend.client()
    if (client := joining.execute) is None:
        raise ConfigurationError("tx= belongs to async code: write 'async with', or give a coroutine function.")
    backend.check(client, joining.place)
    if _lacks_table(backend):  # it holds the file's one lock
        run(backend.tables.providing("steps"), client)
    return client


def drive(program: Program[Any], client: Executor) -> Any:
    """`perform` on an executor."""

    def execute(request: Any) -> Any:
        if request.__class__ is not Call:
            return client(request)
        with _Inside(request.step):
            try:
                return refuse_awaitable(request.function(*request.args)), None
            except Exception as error:  # noqa: BLE001 - the program decides
                return None, error

    return run(program, execute)


async def aperform(backend: Backend, program: Program[Any], joining: Joining | None = None) -> Any:
    """`perform` for async code; each request comes to its end, even if the caller is cancelled."""
    if joining is None:
        if _lacks_table(backend):
            await lazy.asyncio.to_thread(backend.tables.provide, "steps")  # it may wait for writers of the file
        client: Any = backend.aclient()
    elif joining.aexecute is None:
        raise ConfigurationError("tx= belongs to sync code: write 'with', or give a plain function.")
    else:
        client = joining.aexecute
        await backend.acheck(client, joining.place)
        if _lacks_table(backend):
            await arun(backend.tables.providing("steps"), client)

    async def execute(request: Any) -> Any:
        if request.__class__ is not Call:
            answer, cancelled = await run_to_completion(client(request))
            if cancelled is not None:
                raise cancelled
            return answer
        with _Inside(request.step):
            try:
                value = request.function(*request.args)
                return await value if hasattr(value, "__await__") else value, None
            except Exception as error:  # noqa: BLE001 - the program decides
                return None, error

    return await arun(program, execute)


def _lacks_table(backend: Backend) -> bool:
    return backend.kind == "sqlite" and not backend.tables.are_provided("steps")


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
