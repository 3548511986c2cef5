"""The key of an agent's tool call: scope, tool, arguments, and the number of the call among equal ones.

A framework's id of a call cannot be it, since a retry has another one; nor can the arguments alone, since two wanted
equal calls would be one. The number is the lowest under which no such call of this attempt of the run has been
delivered or is under way: an attempt that starts again meets the calls of the one before in their order. A call that
failed or is in doubt gives its number back, so that the model's own retry meets it again; and so does one that the
framework no longer waits for, as a thread that goes on after a time-out.
"""

from __future__ import annotations

import functools
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

from retrysafe.agents.texts import NotApproved, tell
from retrysafe.boundary import Boundary, require_boundary
from retrysafe.claims.claim import Claim, current
from retrysafe.claims.decorator import Arguments, Selector, selector
from retrysafe.claims.functions import is_coroutine_function
from retrysafe.entrypoint import UNUSABLE
from retrysafe.errors import ConfigurationError, KeyReused, Postponed, RetrysafeError
from retrysafe.protocol import keys
from retrysafe.protocol.content_keys import content_key
from retrysafe.protocol.records import Key
from retrysafe.runtime import new_lock

P = ParamSpec("P")
R = TypeVar("R")


class Attempt:
    """One attempt of a run, which numbers its equal calls."""

    def __init__(self, *scope: str) -> None:
        self.scope = scope
        self._taken: dict[str, dict[int, Callable[[], bool]]] = defaultdict(dict)
        self._lock = new_lock()

    @contextmanager
    def numbered(self, same: str, is_given_up: Callable[[], bool]) -> Iterator[str]:
        """The key of a call that is the ``same`` as others; its number is given back if it fails or is given up."""
        with self._lock:
            taken = self._taken[same]
            number = next(number for number in count() if number not in taken or taken[number]())
            taken[number] = is_given_up
        try:
            yield content_key(*self.scope, same, number)
        except BaseException:
            with self._lock:
                if taken.get(number) is is_given_up:
                    del taken[number]
            raise


class _Call(NamedTuple):
    key: Key
    arguments: Mapping[str, Any]
    digest: str


class _Told(Exception):
    """Carries the text for the model out of a call."""


_APPROVAL = "approval"
_TOLD_APART_BY = "run (in LangGraph: thread and checkpoint), tool, arguments, and number among equal calls"
_attempt: ContextVar[Attempt | None] = ContextVar("retrysafe_attempt", default=None)
_call: ContextVar[_Call] = ContextVar("retrysafe_tool_call")


class ToolGuard:
    """Guards the functions that an agent's model calls as tools; frameworks have subclasses in modules of their own.

    Arguments:
        boundary: the boundary that does each call once.
    """

    questions: tuple[type[BaseException], ...] = ()
    """Exceptions by which a tool of the framework asks the user: it has done nothing, and is called again."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = require_boundary(boundary)

    @contextmanager
    def run(self, id: Key) -> Iterator[None]:
        """Around one attempt of a run: ``id`` is of the user's request, the same when the run is started again."""
        token = _attempt.set(Attempt("run", keys.parse(id)))
        try:
            yield
        finally:
            _attempt.reset(token)

    @overload
    def once(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def once(
        self, /, *, key: Selector | None = None, operation: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def once(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        key: Selector | None = None,
        operation: str | None = None,
    ) -> Any:
        """Decorate a tool, below the framework's own decorator: each wanted call has its effect once.

        ``key`` is the argument that names the intent, such as an order, if there is one: models reword arguments. Else
        calls are told apart by run, arguments and number. ``operation`` is as for `Boundary.once`.

        Errors of ours are for the model: it gets a text that says what to do, in place of a result. Raises
        `ConfigurationError` outside `run`, and for a store that a person has to correct.
        """
        if function is None:
            return functools.partial(self.once, key=key, operation=operation)
        arguments = Arguments(function)
        select = None if key is None else selector(key, "key", arguments.names)
        name = operation or getattr(function, "__name__", "")
        visible = functools.cache(lambda: [each for each in arguments.names if each not in self._find_hidden(function)])

        @contextmanager
        def calling(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
            bound = arguments.bind(args, kwargs)
            given = dict(zip(arguments.names, bound, strict=True))
            seen = {each: given[each] for each in visible()}
            digest = content_key(name, seen)
            try:
                if select is not None:
                    with _during(_Call(select(bound), seen, digest)):
                        yield
                else:
                    with self._attempt().numbered(digest, self._waiting()) as key, _during(_Call(key, seen, digest)):
                        yield
            except UNUSABLE:
                raise
            except (RetrysafeError, Postponed) as error:
                raise _Told(tell(error)) from error

        taken = _Taken("key", _TOLD_APART_BY if key is None else key), _Taken("arguments", "arguments")
        claimed = self._boundary.once(key=taken[0], payload=taken[1], operation=operation)
        return _around(claimed(_around(function, self._asking)), calling)

    def _attempt(self) -> Attempt:
        attempt = _attempt.get()
        if attempt is None:
            raise ConfigurationError(
                "A tool was called outside a run, so a retry cannot be told from a second wish. Start the agent in "
                "'with tools.run(id of the user's message):', or give once() the key= that names the intent."
            )
        return attempt

    def _waiting(self) -> Callable[[], bool]:
        """A function that tells, at any time, whether the framework has stopped waiting for the call that begins."""
        return _never

    def _hides(self, hint: Any) -> bool:
        """Tell whether arguments of this type come from the framework, not from the model."""
        return False

    def _find_hidden(self, function: Callable[..., Any]) -> set[str]:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise ConfigurationError(
                f"An annotation of the tool cannot be resolved: {error}. Nothing was done."
            ) from error
        return {name for name, hint in hints.items() if self._hides(hint)} | {"self", "cls"}

    @contextmanager
    def _asking(self, *_: object) -> Iterator[None]:
        """Free the call if the tool has only asked, or was not approved."""
        undone: tuple[type[BaseException], ...] = (*self.questions, NotApproved)
        try:
            yield
        except undone:
            current().not_executed()
            raise
        except KeyReused as error:
            if error.operation != _APPROVAL:
                raise
            current().not_executed()
            raise NotApproved from error

    # ------------------------------------------------------------ approvals

    def digest(self) -> str:
        """The digest of the call that runs, its tool and arguments, for the person who is to approve it."""
        return _call.get().digest

    def approval(self, approval: Key, digest: str) -> Claim:
        """Use up a person's approval of ``digest``: ``with`` or ``async with`` around the effect, inside the tool.

        A retry of the same call may use it again. Raises `NotApproved`, also on entering, if it was given for other
        arguments, or if another call has used it; then the call is free.
        """
        if digest != self.digest():
            raise NotApproved
        return self._boundary.claim(approval, operation=_APPROVAL, payload=current().key_for(_APPROVAL))


def _never() -> bool:
    return False


class _Taken:
    """Takes a part of the call that runs; `retrysafe describe` prints its name, which says how the part is made."""

    def __init__(self, part: str, made_of: Selector) -> None:
        self._part = part
        self.__qualname__ = made_of if isinstance(made_of, str) else getattr(made_of, "__qualname__", "key=")

    def __call__(self) -> Any:
        return getattr(_call.get(), self._part)


@contextmanager
def _during(call: _Call) -> Iterator[None]:
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def _around(function: Callable[..., Any], enter: Callable[..., AbstractContextManager[None]]) -> Callable[..., Any]:
    """The function, in its colour, inside a context that is entered with its arguments; its text if that tells one."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with enter(args, kwargs):
                return function(*args, **kwargs)
        except _Told as told:
            return str(told)

    @functools.wraps(function)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        try:
            with enter(args, kwargs):
                return await function(*args, **kwargs)
        except _Told as told:
            return str(told)

    return acall if is_coroutine_function(function) else call
