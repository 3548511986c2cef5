"""Commands: each is handled once by its id, by the function for its type, and a repeated one gets the stored answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from retrysafe import lazy
from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.claim import current
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.errors import ConfigurationError

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class CommandBus:
    """Sends commands to their handlers, each command once.

    Arguments:
        boundary: what guards the handlers; its ``effects`` are theirs.
        key: the attribute of every command that is the same when it is sent again, or a path such as "meta.id".
    """

    def __init__(self, boundary: Boundary[Any], *, key: str = "id") -> None:
        self._boundary, self._key = require_boundary(boundary), key
        self._handlers: dict[type, Callable[..., Any]] = {}

    def handles(
        self, kind: type[C], *, operation: str | None = None
    ) -> Callable[[Callable[Concatenate[C, P], R]], Callable[Concatenate[C, P], R]]:
        """Decorate the function, or coroutine function, that handles commands of this type.

        An argument ``tx`` of a handler gets the transaction of a transactional boundary. ``operation`` is by default
        the name of the type, and part of every key's identity: name it before you rename the type. Raises
        `ConfigurationError` for a second handler of a type, and for what cannot be guarded.
        """

        if not isinstance(kind, type):  # such as a function, without parentheses
            raise ConfigurationError(f"handles() takes the type of a command, not {kind!r}: @bus.handles(Deposit).")

        def decorate(function: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
            if kind in self._handlers:
                raise ConfigurationError(
                    f"{kind.__name__} has a handler already, {self._handlers[kind].__qualname__}: a command has one."
                )
            once = self._boundary.once(key=f"command.{self._key}", operation=operation or kind.__name__)
            guarded: Any = once(self._call_with(function))
            self._handlers[kind] = guarded
            return guarded  # type: ignore[no-any-return]

        return decorate

    def send(self, command: object, *, tx: Any = None) -> Any:
        """Handle a command, or return its stored answer; await this if the handler is a coroutine function.

        ``tx`` is an open transaction of yours for the handler to join, as for `Boundary.claim`.
        Raises `ConfigurationError` for a type without a handler, `KeyReused` for another command with a used id, and
        what a guarded function raises.
        """
        handler = self._handlers.get(type(command))
        if handler is None:
            known = ", ".join(kind.__name__ for kind in self._handlers) or "none"
            raise ConfigurationError(
                f"There is no handler for commands of type {type(command).__qualname__}; there are for: {known}. "
                "Import the module with its handler, or write one: @bus.handles(…)."
            )
        if tx is not None and self._boundary.effects != "transactional":
            raise ConfigurationError(f"tx= needs effects='transactional'; boundary {self._boundary.name!r} has not.")
        return handler(command) if tx is None else handler(command, tx)

    def _call_with(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The handler as a function of a command, and of a transaction to join where the boundary has any."""
        taken = list(lazy.inspect.signature(function).parameters)
        transactional = self._boundary.effects == "transactional"
        takes_tx = transactional and taken[1:] == ["tx"]
        if len(taken) != 1 + takes_tx:
            raise ConfigurationError(
                f"The handler {function.__qualname__} takes ({', '.join(taken)}): it has to take a command, and may "
                "take tx of a boundary with effects='transactional'."
            )

        @functools.wraps(function)
        def call(command: Any, tx: Any = None) -> Any:
            return function(command, tx=current().tx) if takes_tx else function(command)

        @functools.wraps(function)
        async def acall(command: Any, tx: Any = None) -> Any:
            return await call(command)

        made: Any = acall if is_coroutine_function(function) else call
        made.__signature__ = lazy.inspect.signature(_with_tx if transactional else _without)
        return made  # type: ignore[no-any-return]


def _with_tx(command: Any, tx: Any = None) -> None: ...


def _without(command: Any) -> None: ...
