"""One API and its terms: which key it takes, for how long it recognises it, how to find out and how to undo.

The rows are facts from vendors' pages, with the page and the day; one that was not found there is not ``verified``.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from retrysafe.errors import ConfigurationError, InvalidKey
from retrysafe.protocol import durations

Alphabet = Literal["any", "ascii", "token", "uuid"]
_IN_WORDS: Mapping[Alphabet, str] = {
    "any": "any text",
    "ascii": "printable ASCII without spaces",
    "token": 'letters, digits, "-" and "_"',
    "uuid": "a UUID",
}
_PATTERNS = {"ascii": re.compile("[!-~]+"), "token": re.compile("[A-Za-z0-9_-]+")}
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


class Derives(Protocol):
    """A claim or a step."""

    def key_for(self, name: str, /) -> str:
        """The key for a call downstream."""
        ...


class Remembers(Protocol):
    """A boundary."""

    @property
    def window(self) -> float:
        """Seconds for which a retry is recognised."""
        ...

    @property
    def forgets_after(self) -> float:
        """Seconds after which a key is new work."""
        ...


class Probe(NamedTuple):
    """A request that finds out whether a call happened: method, path, and where the id or key is in it."""

    method: str
    path: str
    where: str


class Provider(NamedTuple):
    """The terms of one API, as its own page says.

    Attributes:
        name, title: how `provider` and people call it.
        operation: which calls take the key.
        header, field: the request header, or the member of the body, that carries the key; with neither it takes none.
        longest: characters of a key at most; None if the page names no limit.
        alphabet: the characters of a key: "any", "ascii", "token" (letters, digits, "-", "_") or "uuid".
        kept: seconds for which a key is recognised at least; infinite for ever; None if the page does not say.
        scope: whose keys are kept apart.
        stored: which results a repetition is answered with.
        concurrent, mismatch: the answer while the first is running, and to the key with another request.
        retry: a response header whose "true" or "false" tells whether to retry.
        probe: how to find out whether a call happened.
        undo: how to compensate for it.
        source, date: the vendor's page, and the day on which it was read.
        verified: whether the row was read there.
    """

    name: str
    title: str
    operation: str
    source: str
    date: date
    verified: bool
    header: str | None = None
    field: str | None = None
    longest: int | None = None
    alphabet: Alphabet = "any"
    kept: float | None = None
    scope: str = ""
    stored: str = ""
    concurrent: str = ""
    mismatch: str = ""
    retry: str | None = None
    probe: Probe | None = None
    undo: str = ""

    def key_for(self, claim: Derives, name: str) -> str:
        """The claim's key for the call ``name``, in a form that the provider takes: a UUID, or its 32 digits.

        The same on every attempt. Raises `ConfigurationError` if the provider takes no key, or none so long.
        """
        if self.header is None and self.field is None:
            raise ConfigurationError(
                f"{self.title} takes no key that we know of, so a retry calls it twice. Nothing was called. Use "
                f"effects='external'{' and a probe= that asks it' if self.probe else ''}."
            )
        key = claim.key_for(name)
        if self.longest is None or len(key) <= self.longest:
            return key
        digits = key.replace("-", "")
        if len(digits) > self.longest or self.alphabet == "uuid":
            raise ConfigurationError(
                f"{self.title} takes keys of up to {self.longest} characters, and a derived key has {len(digits)}. "
                "Nothing was called. Give it an id of yours that is the same on every attempt."
            )
        return digits

    def accept(self, key: str) -> str:
        """Return a key of yours if the provider takes it; raise `InvalidKey` before it is sent if not."""
        if self.longest is not None and len(key) > self.longest:
            raise InvalidKey(f"{self.title} takes keys of up to {self.longest} characters; this one has {len(key)}.")
        pattern = _PATTERNS.get(self.alphabet)
        if (pattern and not pattern.fullmatch(key)) or (self.alphabet == "uuid" and not _is_uuid(key)):
            raise InvalidKey(f"{self.title} takes {_IN_WORDS[self.alphabet]} as a key.")
        return key

    def check(self, boundary: Remembers) -> list[str]:
        """Say where the provider's memory and the boundary's differ, each in a sentence; empty if nothing does.

        A provider that forgets first runs a retry again. One that remembers longer answers new work under an old key
        with the old result. Nothing is said of a provider that does not tell how long it keeps a key.
        """
        return [told for told in (self.forgets_within(boundary.window), self.outlasts(boundary.forgets_after)) if told]

    def forgets_within(self, window: float) -> str | None:
        """Say that a retry within ``window`` seconds may find its key forgotten; None if it can't."""
        if self.kept is None or self.kept >= window:
            return None
        return (
            f"{self.title} keeps a key for {lasting(self.kept)}, and the boundary recognises a retry for "
            f"{lasting(window)}: a later one makes the call again."
        )

    def outlasts(self, memory: float) -> str | None:
        """Say that a key which is new again after ``memory`` seconds may get an old answer; None if it can't."""
        if self.kept is None or self.kept <= memory:
            return None
        return (
            f"{self.title} keeps a key for {lasting(self.kept)}, and the boundary takes it for new work after "
            f"{lasting(memory)}: new work under that key gets the old answer."
        )


def provider(name: str) -> Provider:
    """The terms of an API by its name in the catalogue, such as "stripe". Raises `ConfigurationError` for another."""
    found = catalogue().get(name)
    if found is None:
        near = difflib.get_close_matches(str(name), catalogue(), 1)
        raise ConfigurationError(
            f"There is no provider {name!r} in the catalogue. "
            + (f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(catalogue())}.")
        )
    return found


@cache
def catalogue() -> Mapping[str, Provider]:
    """All rows by name."""
    text = files("retrysafe.providers").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: _read(name, row) for name, row in tomllib.loads(text).items()}


def _read(name: str, row: dict[str, Any]) -> Provider:
    kept, probe = row.pop("kept", None), row.pop("probe", None)
    return Provider(
        name=name,
        kept=math.inf if kept == "forever" else None if kept is None else durations.seconds(kept, f"{name}.kept"),
        probe=None if probe is None else Probe(**probe),
        **row,
    )


def _is_uuid(key: str) -> bool:
    try:
        return str(UUID(key)) == key.lower()
    except ValueError:
        return False


def lasting(seconds: float) -> str:
    """A duration in words."""
    if math.isinf(seconds):
        return "ever"
    number, unit = next(
        ((seconds / size, unit) for size, unit in _UNITS if seconds >= size and not seconds % size), (seconds, "second")
    )
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
