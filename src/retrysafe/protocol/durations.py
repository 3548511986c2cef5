"""Durations as users write them: seconds, timedelta, or text such as "30s", "5m", "48h", "7d"."""

from __future__ import annotations

import re
from datetime import timedelta

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Duration, Micros

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORMS = '30, "30s", "5m" or "48h"'
LONGEST = 100 * 365 * 86400.0
_TEXT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds(value: object, argument: str) -> float:
    """Return ``value`` in seconds; ``argument`` is the name to blame when it is not a duration."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match is None:
            raise ConfigurationError(f"{argument}={value!r} is not a duration: write {_FORMS}.")
        number = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(min(value, 2 * LONGEST))
    else:
        raise ConfigurationError(f"{argument}={value!r} is not a duration: write {_FORMS}.")
    if not 0 < number <= LONGEST:
        raise ConfigurationError(f"{argument}={value!r} must be longer than zero and at most a hundred years.")
    return number


def micros(value: Duration, argument: str) -> Micros:
    """Return ``value`` in whole microseconds."""
    return max(1, round(seconds(value, argument) * 1e6))
