"""A selection of keys as people give it: options of `retrysafe keys list`, and fields in the URLs of the console."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from retrysafe.admin.operator import check_digits
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations
from retrysafe.protocol.records import ROUTED, EffectiveState, Filter, Micros

STATES = tuple(one.value for one in EffectiveState if one is not EffectiveState.ABSENT)
_ROUTE = re.compile("[A-Z]+ /")
_TEXTS = ("boundary", "operation", "scope")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Fields = Mapping[str, Sequence[str]]
"""Names of options, without dashes, and their values; what is empty was not given."""


def parse(fields: Fields) -> Filter:
    """The selection that these fields describe; raise `ConfigurationError` for a value that is not one.

    ``older-than`` may be a number of seconds, ``operation`` a method and route alone. Leases of relays and redrives are
    left out, unless a boundary, operation or hash is named.
    """
    given = {name: values[-1] for name, values in fields.items() if values and values[-1]}
    if "operation" in given:
        given["operation"] = read_operation(given["operation"])
    older = given.get("older-than")
    return Filter(
        **{name: given.get(name) for name in _TEXTS},
        states=frozenset(_state(value) for value in fields.get("state", ()) if value),
        digits=check_digits(given["hash"]) if "hash" in given else "",
        since=_instant(given, "since"),
        until=_instant(given, "until"),
        older_than=None if older is None else durations.micros(_number(older), "--older-than"),
        own=any(name in given for name in ("boundary", "operation", "hash")),
    )


def read_operation(text: str) -> str:
    """The operation that a text names: a method and route alone stand for that of its requests."""
    return ROUTED + text if _ROUTE.match(text) else text


def fields_of(wanted: Filter) -> Iterator[tuple[str, str]]:
    for name in _TEXTS:
        if (value := getattr(wanted, name)) is not None:
            yield name, value
    for state in sorted(wanted.states):
        yield "state", state.value
    if wanted.digits:
        yield "hash", wanted.digits
    for name in ("since", "until"):
        if (instant := getattr(wanted, name)) is not None:
            yield name, iso(instant)
    if wanted.older_than is not None:
        yield "older-than", f"{wanted.older_than / 1e6:g}s"


def iso(micros: Micros) -> str:
    """An instant in UTC as ISO 8601, to the microsecond if it has a fraction of a second."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def _instant(given: Mapping[str, str], name: str) -> Micros | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
        aware = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter in the first hours of the year 1, and the last of 9999
        raise ConfigurationError(
            f"--{name} {text!r} is not an instant: write 2026-03-01T14:00 (UTC) or 2026-03-01T14:00+01:00."
        ) from None
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _state(text: str) -> EffectiveState:
    if text not in STATES:
        raise ConfigurationError(f"--state {text!r} is not a state: give one of {', '.join(STATES)}.")
    return EffectiveState(text)


def _number(text: str) -> float | str:
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else text
