"""The spec of a backend, written in its folder, so that no code outside of the folder names it.

References such as "opening:from_url" name a module of the folder and an attribute of it. They are text, so that reading
a spec imports no client library, and no module of the backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError

NOTHING: Mapping[str, str] = MappingProxyType({})


class CacheSpec(NamedTuple):
    """The way in which a backend serves as the fast store of ``layered``.

    cache: makes a `Cache` for the truth of a name.
    from_url: makes a backend that waits for its server only briefly.
    """

    cache: str
    from_url: str


class BackendSpec(NamedTuple):
    """One backend: the values of ``store=`` that select it, and the functions to import then.

    package: the folder, as an importable name.
    stores: the classes of its stores, for documentation and tests.
    time_travel: for each store class, the function by which tests let time pass in it: see `retrysafe.testing.age`.
    schemes: of URLs, each with the function that makes a `Backend` of such a URL.
    accepts: what else ``store=`` may be, in words.
    objects: the types of those objects, as "module:name", each with the function that makes a `Backend` of one.
    transactions: the types that ``tx=`` may have, each with the function that makes a `Joining` of one, of the kind and
        of the address of the store.
    extra: the optional dependency that all of these functions need; empty where they differ, or need none.
    unshared: URLs that lead to another store each time.
    absolute: a function from a URL to the one that means the same wherever the process is; empty if all do.
    alias: the function that makes a `Backend` of text which is no URL; one backend has it.
    cache: how it serves as a fast store, if it does.
    footprints: for each kind of its stores, the function from `Sizes` to the `Footprint` of a record.
    checks: for each kind of its stores, the `Examination` of `retrysafe doctor`; reading it needs no client library.
    """

    package: str
    stores: tuple[str, ...]
    time_travel: Mapping[str, str]
    schemes: Mapping[str, str]
    accepts: str = ""
    objects: Mapping[str, str] = NOTHING
    transactions: Mapping[str, str] = NOTHING
    extra: str = ""
    unshared: Collection[str] = ()
    absolute: str = ""
    alias: str = ""
    cache: CacheSpec | None = None
    footprints: Mapping[str, str] = NOTHING
    checks: Mapping[str, str] = NOTHING

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import what a reference names. Raises `ConfigurationError` when its library is missing."""
        module, _, attribute = reference.partition(":")
        return attrgetter(attribute)(library(f"{self.package}.{module}", self.extra))


def library(module: str, extra: str, user: str = "store=") -> Any:
    """Import a module that ``user`` needs, with the library of an extra.

    Raises `ConfigurationError` when that library is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not extra:
            raise
        raise ConfigurationError(
            f"{user} needs a library that is missing ({error}). Run:  pip install 'retrysafe[{extra}]'"
        ) from error
