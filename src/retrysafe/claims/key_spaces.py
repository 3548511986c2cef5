"""The owners of keys in this process: one boundary of a name on a store, and one owner of each of its operations.

Two that claim the same keys without knowing of each other would be answered with each other's results. So a second one
is refused, unless both are ``shared``, or the same line of code makes it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from retrysafe import lazy
from retrysafe.backends.backend import Backend
from retrysafe.claims.codec import Codec
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import keys
from retrysafe.protocol.records import StoredResult
from retrysafe.runtime import new_lock

_MAIN = ("__main__", "__mp_main__")


class Origin(NamedTuple):
    """The line of code that makes something."""

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def origin_of_caller(depth: int) -> Origin:
    """The origin of what is made so many calls further out."""
    frame = sys._getframe(depth + 1)
    return Origin(str(frame.f_globals.get("__name__")), frame.f_code.co_filename, frame.f_lineno)


def origin_of(made: object) -> Origin:
    """The origin of a function; of a class or another object the line is not known."""
    code = getattr(_unwrap(made), "__code__", None)
    file, line = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
    return Origin(str(getattr(made, "__module__", None)), file or str(_globals_of(made).get("__file__")), line)


def _unwrap(made: Any) -> Any:
    """The function below its decorators."""
    return lazy.inspect.unwrap(made) if callable(made) else made


def _globals_of(made: object) -> Mapping[str, Any]:
    module = sys.modules.get(str(getattr(made, "__module__", None)))
    found: Mapping[str, Any] | None = getattr(_unwrap(made), "__globals__", None)
    return found if found is not None else getattr(module, "__dict__", {})


def module_of(made: object) -> str | None:
    """The name under which the module of a function or class is imported; None when it cannot be.

    The module that a process was started with is called ``__main__`` there: it has the name that it was started by,
    or that of its file.
    """
    module = getattr(made, "__module__", None)
    if module not in _MAIN:
        return str(module) if module else None
    names = _globals_of(made)
    spec = names.get("__spec__")
    name = str(names.get("__file__") or "").replace("\\", "/").rpartition("/")[2].partition(".")[0]
    name = name if spec is None else str(spec.name)
    return None if name in ("", *_MAIN) else name


def default_operation(function: Callable[..., Any]) -> str:
    """The operation of a function that was given none: its module and qualified name."""
    name = getattr(function, "__qualname__", None)
    module = module_of(function)
    if name is None or "<lambda>" in name:
        raise ConfigurationError("once() needs operation= for a function without a name of its own.")
    if module is None:
        raise ConfigurationError(
            f"once() needs operation= for {name!r}: its module has no name that other processes would know it by."
        )
    return keys.check_name(f"{module}.{name}", "operation")


def is_method(function: Callable[..., Any]) -> bool:
    """Tell whether a function belongs to a class, by its qualified name."""
    return str(getattr(function, "__qualname__", "")).rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")


def operation_in(kind: type, function: Callable[..., Any], operation: str) -> str:
    """The operation of a method that was given none, called on ``kind``: a class that inherits it has its own."""
    if (kind.__module__, f"{kind.__qualname__}.{function.__name__}") == (function.__module__, function.__qualname__):
        return operation
    module = module_of(kind)
    if module is None:
        raise ConfigurationError(
            f"once() needs operation= for {operation!r}, which {kind.__qualname__} inherits: the module of that class "
            "has no name that other processes would know it by."
        )
    return keys.check_name(f"{operation} ({module}.{kind.__qualname__})", "operation")


# ---------------------------------------------------------------- boundaries


class Namesake(Protocol):
    """A boundary, as others of its name see it."""

    origin: Origin
    shared: bool
    owners: dict[str, KeyOwner]

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def closed(self) -> bool: ...

    def list_shared_settings(self) -> Mapping[str, object]:
        """The settings that two boundaries of a name must have in common, unless they are shared."""
        ...

    def refuse_result(self, operation: str, stored: StoredResult) -> None:
        """Raise `ConfigurationError` for a result that retries of the operation could not be given."""
        ...


_living: dict[str, WeakSet[Any]] = {}
"""The boundaries by name."""
_lock = new_lock()


def living() -> list[Namesake]:
    """The boundaries of this process that can claim keys, by name."""
    with _lock:
        found: list[Namesake] = [one for name in sorted(_living) for one in _living[name]]
    return [one for one in found if not one.closed]


def enter(made: Namesake) -> None:
    """Let a new boundary claim keys; raise `ConfigurationError` where another one of its name claims the same."""
    for one in _others(made):
        if one.shared and made.shared:
            continue
        ours, theirs = made.list_shared_settings(), one.list_shared_settings()
        differing = ", ".join(f"{name}=" for name in ours if ours[name] != theirs[name])
        if differing or one.origin != made.origin:
            harm = f"with another {differing}: both would claim the same keys, and promise something else of them"
            raise ConfigurationError(
                f"There is a boundary {made.name!r} on this store already, built at {one.origin}"
                f"{', ' + harm if differing else ': each would get results of the other'}. Build it once and import "
                "it, give this one another name, close() that one, or give both shared=True if they are to share "
                "their keys."
            )
    with _lock:
        _living.setdefault(made.name, WeakSet()).add(made)


def _others(made: Namesake) -> list[Namesake]:
    """The boundaries that claim keys of the same name on the same store."""
    with _lock:
        found: list[Namesake] = list(_living.get(made.name, ()))
    others = [one for one in found if one is not made and not one.closed]
    return [one for one in others if one.backend.database.is_same(made.backend.database) is True]


# ---------------------------------------------------------------- operations


class KeyOwner(NamedTuple):
    """The owner of an operation's keys: a function, or another identity that several objects share."""

    what: object
    origin: Origin
    shared: bool
    key: str = ""
    """The source of the keys, in words; empty for a guarded function, which names its selector."""
    codec: Codec | None = None
    """The codec of their results, if it is not the boundary's."""

    @property
    def title(self) -> str:
        name = getattr(self.what, "__qualname__", None)
        return str(name or (self.what if isinstance(self.what, str) else type(self.what).__name__))

    def __str__(self) -> str:
        return f"{self.title} ({self.origin})" if self.origin.line else self.title

    def is_same(self, other: KeyOwner, *, same_boundary: bool) -> bool:
        """Tell whether both may claim the same keys.

        ``same_boundary``: both are of one boundary object. Two functions that one line of code has made, as in a loop,
        are two then if they are bound to other values; with a boundary each, the line was run again.
        """
        if (self.shared and other.shared) or self.what is other.what:
            return True
        if isinstance(self.what, str) or not self.origin.line:
            return self.what == other.what
        return self.origin == other.origin and not (same_boundary and _bindings(self.what) != _bindings(other.what))


def take(boundary: Namesake, operation: str, owner: KeyOwner) -> None:
    """Let ``owner`` claim keys under an operation; raise `ConfigurationError` where another one does."""
    for member in (boundary, *_others(boundary)):
        found = member.owners.get(operation)
        if found is not None and not found.is_same(owner, same_boundary=member is boundary):
            raise ConfigurationError(
                f"The operation {operation!r} of boundary {boundary.name!r} belongs to {found} already: their keys "
                f"would collide, and {owner} would get results of the other. Give one of them another operation=, "
                "or the same one and shared=True to both if they are to share their keys."
            )
    boundary.owners[operation] = owner


def _bindings(function: Any) -> tuple[object, ...]:
    """The object, the defaults and the variables by which functions of one line of code differ.

    Other objects differ by ``_told_apart`` if they have it, or are different ones.
    """
    if not hasattr(_unwrap(function), "__code__"):
        return (getattr(function, "_told_apart", function),)
    names = ("__self__", "__defaults__", "__kwdefaults__", "__closure__")
    return tuple(getattr(function, name, None) for name in names)
