"""The decorator: key and payload from the arguments, results to and from the codec."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from retrysafe import lazy
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import Codec, JSONCodec, unstorable
from retrysafe.claims.functions import NotYet, is_coroutine_function, is_generator_function, return_annotation
from retrysafe.claims.restarts import arestarting, restarting
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import ConfigurationError, InvalidKey
from retrysafe.protocol import fingerprint, keys
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.fingerprint import UNCHECKED, Fingerprint

P = ParamSpec("P")
R = TypeVar("R")
Opener = Callable[..., Claim]
Selector = str | Callable[..., Any]
_GENERATORS = (GeneratorType, AsyncGeneratorType)
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+|\[\d+\])*")


class Arguments:
    """Binds the arguments of one function to its parameters, without the cost of a signature object per call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = lazy.inspect.signature(function)
        parameters = self.signature.parameters.values()
        self.names = tuple(parameter.name for parameter in parameters)
        self._known = frozenset(self.names)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        needed = len(self.names) - len(self.defaults)
        self._rests = {
            count: tuple(self.defaults[name] for name in self.names[count:])
            for count in range(needed, len(self.names) + 1)
            if self._plain
        }
        """The defaults that follow so many arguments by place."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values in the order of ``names``, with defaults; raises TypeError as the call itself would."""
        if not kwargs and (rest := self._rests.get(len(args))) is not None:
            return args + rest
        if self._plain and len(args) <= len(self.names):
            bound = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
            if len(bound) == len(self.names) and (not kwargs or self._fits(kwargs, self.names[: len(args)])):
                return tuple([bound[name] for name in self.names])
        full = self.signature.bind(*args, **kwargs)
        full.apply_defaults()
        return tuple(full.arguments.values())

    def _fits(self, kwargs: Mapping[str, Any], taken: tuple[str, ...]) -> bool:
        return kwargs.keys() <= self._known and kwargs.keys().isdisjoint(taken)


def selector(given: Selector, argument: str, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """Turn a path such as "order.id" or a callable taking the same arguments into a function of the bound arguments."""
    if callable(given):
        try:
            taken = tuple(lazy.inspect.signature(given).parameters)
        except ValueError as error:
            raise ConfigurationError(f"{argument}= has no signature to call it by: wrap it in a lambda.") from error
        unknown = [name for name in taken if name not in names]
        if unknown:
            raise ConfigurationError(f"{argument}= takes {unknown[0]!r}, which is not an argument of the function.")
        places = {name: names.index(name) for name in taken}
        return lambda bound: given(**{name: bound[place] for name, place in places.items()})
    path: object = given
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise ConfigurationError(
            f'{argument}={given!r} is not a path such as "order.id", "order.lines[0]" or "request.headers.key".'
        )
    first, *rest = re.findall(r"\w+", given)
    if first not in names:
        raise ConfigurationError(
            f"{argument}={given!r}: the function has no argument {first!r}; it has {', '.join(names) or 'none'}."
        )
    place = names.index(first)
    return (lambda bound: _follow(bound[place], rest, given)) if rest else itemgetter(place)


def _follow(value: Any, steps: list[str], path: str) -> Any:
    for step in steps:
        try:
            if isinstance(value, Mapping):
                value = value[step]
            elif step.isdigit():
                value = value[int(step)]
            else:
                value = getattr(value, step)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise InvalidKey(f"The path {path!r} leads nowhere: {error!r}") from error
    return value


def fingerprint_of(payload: Any) -> Fingerprint:
    """The fingerprint of a payload, of which None is one as any other."""
    try:
        return fingerprint.of_payload(payload)
    except NotCanonical as error:
        raise _refusal_of(error) from error


def _refusal_of(error: NotCanonical) -> ConfigurationError:
    return ConfigurationError(
        f"{error}. Choose what counts as the payload with payload=, or switch the check off: with payload=None of "
        "once(), without payload= of claim()."
    )


class Guarded:
    """The state of one decorated function, used at each call."""

    def __init__(
        self,
        settings: BoundarySettings,
        open_claim: Opener,
        function: Callable[..., Any],
        key: Selector,
        payload: Selector | Literal["arguments"] | None,
        operation: str,
        inherit: Callable[[Guarded, type], str] | None = None,
        *,
        is_operation_given: bool = True,
    ) -> None:
        self.is_operation_given = is_operation_given
        self.function = function
        self.operation = operation
        self.key_by = key
        self.payload_by = payload
        self._open = open_claim
        self._arguments = Arguments(function)
        self._key = selector(key, "key", self._arguments.names)
        if payload is not None and payload != "arguments":
            self._select = selector(payload, "payload", self._arguments.names)
        self._key_part = key if isinstance(key, str) else None
        names = self._arguments.names
        takes_tx = "tx" in names and settings.effects == "transactional"
        self._tx_place = names.index("tx") if takes_tx else None
        owner = {"self", "cls"}.intersection(names[:1])
        self._fields = fingerprint.Fields(names, self._arguments.defaults, owner | ({"tx"} if takes_tx else set()))
        self._annotation: Any = _Unresolved
        self._codec = settings.codec
        self._inherit = inherit if owner else None
        self._inherited: WeakKeyDictionary[type, str] = WeakKeyDictionary()

    def claim(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Claim:
        """The claim for one call."""
        bound = self._arguments.bind(args, kwargs)
        key = self._key(bound)
        return self._open(
            key,
            operation=self.operation if self._inherit is None else self._operation_in(bound[0]),
            fingerprint=self._fingerprint(bound, key),
            tx=None if self._tx_place is None else bound[self._tx_place],
            annotation=self.annotation,
        )

    def identify(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Fingerprint | bytes]:
        """The key and the fingerprint of one call, for an entry point that opens its claim itself."""
        bound = self._arguments.bind(args, kwargs)
        key = self._key(bound)
        return key, self._fingerprint(bound, key)

    def _operation_in(self, owner: Any) -> str:
        """The operation for the class, or the object, that a method is called on."""
        kind = owner if isinstance(owner, type) else type(owner)
        found = self._inherited.get(kind)
        if found is None:
            assert self._inherit is not None
            found = self._inherited[kind] = self._inherit(self, kind)
        return found

    def _fingerprint(self, bound: tuple[Any, ...], key: Any) -> Fingerprint | bytes:
        if self.payload_by is None:
            return UNCHECKED
        if self.payload_by != "arguments":
            return fingerprint_of(self._select(bound))
        try:
            found = self._fields.of(bound)
        except NotCanonical as error:
            raise _refusal_of(error) from error
        if self._key_part is None or key.__class__ is str or key is None:
            return found
        return found.with_text(self._key_part, keys.parse(key))  # 42 and "42" are one key

    @property
    def annotation(self) -> Any:
        """The return annotation, resolved at the first call, when every name it uses exists."""
        if self._annotation is _Unresolved:
            annotation = return_annotation(self.function)
            refuse_unstorable(self._codec, annotation, f"The return annotation of {_name_of(self.function)}")
            self._annotation = annotation
        return self._annotation

    def refuse_unstorable(self) -> None:
        """Refuse a result that cannot be stored, if the annotation tells; one that cannot be resolved yet is left."""
        with suppress(NotYet):
            _ = self.annotation


def refuse_unstorable(codec: Codec, annotation: Any, told: str) -> None:
    """Refuse a type of which no result could be stored, before there is an effect. ``told``: what names the type."""
    if type(codec) is not JSONCodec or (found := unstorable(annotation)) is None:
        return
    raise ConfigurationError(
        f"{told} names {found}, and what it returns could not be stored for a retry: return a dataclass, an enum, a "
        "pydantic model or plain JSON types, such as the id of what was made, or give codec= of your own."
    )


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


class _Unresolved:
    """The annotation has not been looked at yet."""


def refuse_other_than_functions(decorated: object) -> None:
    """Raise `ConfigurationError` for what cannot be called, or whose calls would not be guarded as one thinks."""
    if isinstance(decorated, classmethod | property):
        raise ConfigurationError(
            f"once() was put above @{type(decorated).__name__}: put it below, next to the function."
        )
    if isinstance(decorated, type):
        raise ConfigurationError(
            f"once() was put above class {decorated.__name__}, and an object cannot be replayed: put it above the "
            "method that does the work."
        )
    if not callable(decorated):
        raise ConfigurationError(f"once() guards functions and methods, not {decorated!r}: put it above a def.")


def wrap(guarded: Guarded) -> Callable[..., Any]:
    """The guarded function, in the colour of the one it guards."""
    function = guarded.function
    if is_generator_function(function):
        raise ConfigurationError("once() guards functions and coroutines; a generator's values cannot be replayed.")
    if is_coroutine_function(function):
        guarded.refuse_unstorable()
        return _wrap_async(guarded)
    if lazy.inspect.iscoroutinefunction(lazy.inspect.unwrap(function)):
        raise ConfigurationError(
            "once() was given a sync wrapper around a coroutine function: put @once() next to the coroutine function, "
            "below the other decorator."
        )
    guarded.refuse_unstorable()
    return _wrap_sync(guarded)


def _wrap_sync(guarded: Guarded) -> Callable[..., Any]:
    function = guarded.function

    @functools.wraps(function)
    def once(*args: Any, **kwargs: Any) -> Any:
        def attempt(claim: Claim) -> None:
            with claim:
                if not claim._replayed:
                    claim._result = refuse_unfinished(claim, function(*args, **kwargs))

        return restarting(lambda: guarded.claim(args, kwargs), attempt)._give_answer()

    return once


def refuse_unfinished(claim: Claim, value: Any) -> Any:
    """Refuse an awaitable or a generator as a result: the work is not done, and nothing here would do it.

    If it may have begun, as a task may, it counts as an effect that happened, so that the key does not become free
    while it goes on.
    """
    if not (hasattr(value, "__await__") or isinstance(value, _GENERATORS)):
        return value
    if not _close_unstarted(value):
        claim.committed()
    raise ConfigurationError(
        "The function returned an awaitable or a generator, whose work is not done: make it a coroutine function, and "
        "await there what is to be done."
    )


def _close_unstarted(value: Any) -> bool:
    """Close what has not begun; tell whether that is so."""
    if lazy.inspect.isasyncgen(value):
        return not value.ag_running
    if lazy.inspect.iscoroutine(value):
        unstarted = lazy.inspect.getcoroutinestate(value) == lazy.inspect.CORO_CREATED
    else:
        unstarted = (
            lazy.inspect.isgenerator(value) and lazy.inspect.getgeneratorstate(value) == lazy.inspect.GEN_CREATED
        )
    if unstarted:
        value.close()
    return unstarted


def _wrap_async(guarded: Guarded) -> Callable[..., Any]:
    function = guarded.function

    @functools.wraps(function)
    async def once(*args: Any, **kwargs: Any) -> Any:
        async def attempt(claim: Claim) -> None:
            async with claim:
                if not claim._replayed:
                    claim._result = refuse_unfinished(claim, await function(*args, **kwargs))

        return (await arestarting(lambda: guarded.claim(args, kwargs), attempt))._give_answer()

    return once
