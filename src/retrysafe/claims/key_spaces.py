"""The owners of keys in this process: one boundary of a name on a store, and one owner of each of its operations.

Two that claim the same keys without knowing of each other are answered with each other's results. What is loaded
again takes the place of what it was before, and what is closed, or no longer reachable, claims nothing.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from retrysafe.backends.backend import Backend
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import keys
from retrysafe.runtime import new_lock

T = TypeVar("T")
_MAIN = ("__main__", "__mp_main__")
_EMPTY = types.CellType()


class Origin(NamedTuple):
    """The place in the code that makes something."""

    module: str
    file: str
    line: int
    load: object
    """The spec of its module, of which every import makes a new one; None for code that was not imported."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def place(self) -> tuple[str, str, int]:
        """The line of code, however often it is run."""
        return self.module, self.file, self.line

    def loaded_again(self, later: Origin) -> bool:
        """Tell whether the module was imported again before ``later`` was made in it."""
        once = self.load is None or later.load is None or self.load is later.load
        return not once and (self.module, self.file) == (later.module, later.file)


def origin_of_caller(depth: int) -> Origin:
    """The origin of what is made so many calls further out."""
    frame = sys._getframe(depth + 1)
    names = frame.f_globals
    return Origin(str(names.get("__name__")), frame.f_code.co_filename, frame.f_lineno, names.get("__spec__"))


def origin_of(made: object) -> Origin:
    """The origin of a function or class; of anything else little is known."""
    code = getattr(_plain(made), "__code__", None)
    file, line = ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
    names = _globals_of(made)
    return Origin(
        str(getattr(made, "__module__", None)), file or str(names.get("__file__")), line, names.get("__spec__")
    )


def _plain(made: Any) -> Any:
    """The function below its decorators."""
    import inspect

    return inspect.unwrap(made) if callable(made) else made


def _globals_of(made: object) -> Mapping[str, Any]:
    found = getattr(_plain(made), "__globals__", None)
    return found if found is not None else vars(sys.modules.get(str(getattr(made, "__module__", None)), types))


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


class Member(Protocol):
    """A boundary, as others of its name see it."""

    origin: Origin
    shared: bool
    owners: dict[str, Owner]

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def closed(self) -> bool: ...

    def agreed(self) -> Mapping[str, object]:
        """The settings that two boundaries of a name must have in common, unless they are shared."""
        ...


_living: dict[str, WeakSet[Any]] = {}
_lock = new_lock()


def enter(made: Member) -> None:
    """Let a new boundary claim keys; raise `ConfigurationError` where another one of its name claims the same.

    There may be several that are all ``shared``; and the same line of code may build one again, with the same settings.
    """
    conflict = _lasting(lambda: next(filter(None, (_difference(one, made) for one in _others(made))), None))
    if conflict is not None:
        raise ConfigurationError(conflict)
    with _lock:
        _living.setdefault(made.name, WeakSet()).add(made)


def _others(made: Member) -> list[Member]:
    """The boundaries that claim keys of the same name on the same store."""
    with _lock:
        found: list[Member] = list(_living.get(made.name, ()))
    return [
        one
        for one in found
        if one is not made
        and not one.closed
        and one.backend.database.is_same(made.backend.database) is True
        and not one.origin.loaded_again(made.origin)
    ]


def living() -> list[Member]:
    """The boundaries of this process that can claim keys, by name."""
    with _lock:
        found: list[Member] = [one for name in sorted(_living) for one in _living[name]]
    return [one for one in found if not one.closed]


def _difference(one: Member, made: Member) -> str | None:
    """Why two boundaries cannot both claim the keys of their name, if they cannot."""
    there = f"There is a boundary {made.name!r} on this store already, built at {one.origin}"
    if one.shared and made.shared:
        return None
    mine, other = made.agreed(), one.agreed()
    differing = [name for name in mine if mine[name] != other[name]]
    if differing:
        return (
            f"{there}, with another {', '.join(f'{name}=' for name in differing)}: both would claim the same keys, and "
            "promise something else of them. Build it once and import it, give this one another name, close() that "
            "one, or give both shared=True if they are to share their keys nevertheless."
        )
    if one.origin.place == made.origin.place:
        return None
    return (
        f"{there}: each would get results of the other. Build it once and import it, give this one "
        "another name, close() that one, or give both shared=True if they are to share their keys."
    )


def _lasting(look: Callable[[], T | None]) -> T | None:
    """Return the found object, also after nothing else refers to it any more."""
    if look() is None:
        return None
    gc.collect()
    return look()


# ---------------------------------------------------------------- operations


class Owner(NamedTuple):
    """The owner of an operation's keys: a function, or another identity that several objects share."""

    what: object
    origin: Origin
    shared: bool
    key: str = ""
    """The source of the keys, in words; empty for a guarded function, which names its selector."""

    @property
    def title(self) -> str:
        name = getattr(self.what, "__qualname__", None)
        return str(name or (self.what if isinstance(self.what, str) else type(self.what).__name__))

    def __str__(self) -> str:
        return f"{self.title} ({self.origin})" if self.origin.line else self.title


def take(boundary: Member, operation: str, owner: Owner) -> None:
    """Let ``owner`` claim keys under an operation; raise `ConfigurationError` where another one does.

    They may be several that are all ``shared``, and the same function any number of times.
    """

    def other() -> Owner | None:
        return next((one for one in _owners(boundary, operation) if not _are_one(one, owner)), None)

    found = _lasting(other)
    if found is not None:
        raise ConfigurationError(
            f"The operation {operation!r} of boundary {boundary.name!r} belongs to {found} already: their keys would "
            f"collide, and {owner} would get results of the other. Give one of them another operation=, "
            "or the same one and shared=True to both if they are to share their keys."
        )
    boundary.owners[operation] = owner


def _owners(boundary: Member, operation: str) -> Iterator[Owner]:
    for one in (boundary, *_others(boundary)):
        if operation in one.owners:
            yield one.owners[operation]


def _are_one(one: Owner, other: Owner) -> bool:
    return (
        (one.shared and other.shared)
        or one.what is other.what
        or one.origin.loaded_again(other.origin)
        or (callable(one.what) and _values(one.what) == _values(other.what))
        or (isinstance(one.what, str) and one.what == other.what)
    )


def _values(function: Any) -> tuple[Any, ...]:
    """Return the identity of a function: its code, module, object and closed-over values."""
    cells = getattr(function, "__closure__", None) or ()
    values = tuple(cell.cell_contents for cell in cells if cell != _EMPTY)
    code = getattr(function, "__code__", function)
    defaults = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    return getattr(function, "__module__", None), getattr(function, "__self__", None), code, values, defaults
