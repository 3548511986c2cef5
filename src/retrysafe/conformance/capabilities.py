"""The capability document of the fixture, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from retrysafe.errors import ConfigurationError

VERSION = 1
"""The version of the fixture contract, `docs/reference/conformance-fixture.md`."""

Mode = Literal["leased", "transactional"]
MODES: tuple[Mode, ...] = get_args(Mode)
FEATURES = frozenset(
    {"gate", "stream", "raise", "hop", "background", "principals", "elapse", "store", "cors", "compression"}
)
LIMITS = frozenset({"request", "request_memory", "response", "lease", "window"})
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "header": ("Idempotency-Key",),
    "key_syntax": ("lenient", "strict", "bare"),
    "key_policy": ("any", "strong", "uuid"),
    "required": (False, True),
    "methods": (["POST", "PATCH"],),
    "concurrency": ("reject", "wait"),
    "concurrent_status": (409, 423, 202, 429),
    "retry_after": (True, False),
    "mismatch_status": (422,),
    "on_5xx": ("release", "store", "unknown"),
    "on_4xx": ("store", "release"),
    "on_large": ("omit", "error"),
    "on_expired": ("new", "refuse"),
    "operation": ("one", "endpoint"),
    "json": ("bytes", "canonical"),
    "cookies": ("drop", "replay"),
    "headers": ("all",),
}
"""The free choices of the contract: the default first, then the others; of those in `_FREE` any other."""
_FREE = frozenset({"header", "methods", "mismatch_status", "headers"})


@dataclass(frozen=True)
class Capabilities:
    """The properties and choices of a server under test. The fields are those of the document, defaults included.

    Raises `ConfigurationError` for a name or value that the fixture contract does not have.
    """

    name: str = ""
    version: str = ""
    server: str = ""
    mode: Mode = "leased"
    features: frozenset[str] = frozenset()
    limits: Mapping[str, float] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    openapi: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", frozenset(self.features))
        if self.mode not in MODES:
            raise ConfigurationError(f"mode {self.mode!r}: it is one of {', '.join(MODES)}")
        _check_known("feature", self.features, FEATURES)
        _check_known("limit", self.limits, LIMITS)
        _check_known("choice", self.choices, CHOICES)
        for name, value in self.choices.items():
            if name not in _FREE and value not in CHOICES[name]:
                raise ConfigurationError(f"choice {name}={value!r}: it is one of {CHOICES[name]}")
        for name, limit in self.limits.items():
            if limit <= 0:
                raise ConfigurationError(f"limit {name}={limit!r}: it is a number above 0")

    def choice(self, name: str) -> Any:
        """Return the server's choice, or the contract's default."""
        return self.choices.get(name, CHOICES[name][0])

    @property
    def transactional(self) -> bool:
        """True if record, response and the handler's database work commit in one transaction."""
        return self.mode == "transactional"

    def in_mode(self, mode: Mode) -> Capabilities:
        return dataclasses.replace(self, mode=mode)

    def without(self, features: set[str], why: str) -> str | None:
        """Why a case that needs ``features`` can't be run, or None."""
        for name in sorted(features - self.features):
            return f"{why} the feature {name!r}: {self.unsupported.get(name, 'not offered')}"
        return None


def _check_known(what: str, found: Any, known: Any) -> None:
    if unknown := sorted(set(found) - set(known)):
        raise ConfigurationError(f"{what} {unknown[0]!r} is unknown; there are {', '.join(sorted(known))}")


def parse(document: Any) -> Capabilities:
    if not isinstance(document, dict) or document.get("fixture") != VERSION:
        raise ConfigurationError(
            f"this is not a capability document of fixture version {VERSION}: it needs a member "
            f'"fixture": {VERSION}. See the reference page "The conformance fixture"'
        )
    members = {name: value for name, value in document.items() if name != "fixture"}
    _check_known("member", members, {one.name for one in dataclasses.fields(Capabilities)})
    for name, value in members.items():
        if not _KINDS.get(name, _is_text)(value):
            raise ConfigurationError(f"member {name!r} of the capability document can't be {value!r}")
    return Capabilities(**members)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "features": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "limits": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "choices": lambda value: isinstance(value, dict),
    "unsupported": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "openapi": lambda value: value is None or _is_text(value),
}
