"""Writing messages into an outbox."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.ports import Ask, Steps
from retrysafe.programs.drivers import ask


def each(asks: Iterable[Ask[None]]) -> Steps[None]:
    """Put one ask after the other."""
    for request in asks:
        yield from ask(request)
