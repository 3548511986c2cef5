"""The catalogue of providers as tables, and the functions that read it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from docparts.markdown import table
from docparts.reference import reference
from retrysafe import providers
from retrysafe.providers import Provider, catalogue
from retrysafe.providers.provider import lasting


def terms() -> str:
    """One row per API: its key."""
    head = ("name", "which calls", "where the key is", "longest", "characters", "kept", "kept apart by", "read")
    return table(head, (tuple(_terms(one)) for one in catalogue().values()))


def _terms(one: Provider) -> Iterator[str]:
    yield f"`{one.name}`"
    yield f"[{one.title}]({one.source}): {one.operation}"
    yield f"`{one.header}`" if one.header else f"field `{one.field}`" if one.field else "no key found"
    yield "" if one.longest is None else str(one.longest)
    yield "" if one.alphabet == "any" else one.alphabet
    yield "" if one.kept is None else "for ever" if math.isinf(one.kept) else lasting(one.kept)
    yield one.scope
    yield f"{one.date}" if one.verified else "not verified"


def answers() -> str:
    """One row per API that says more: what a repetition gets, and how to find out and to undo."""
    head = ("name", "what is stored", "while the first runs", "another request", "how to find out", "how to undo")
    told = (one for one in catalogue().values() if one.stored or one.mismatch or one.probe)
    return table(
        head, ((f"`{one.name}`", one.stored, one.concurrent, one.mismatch, _probe(one), one.undo) for one in told)
    )


def _probe(one: Provider) -> str:
    return "" if one.probe is None else f"`{one.probe.method} {one.probe.path}`: {one.probe.where}"


def names() -> str:
    """Every public name but for types."""
    return "\n".join(
        reference(name, getattr(providers, name)) for name in ("provider", "catalogue", "Provider", "Probe")
    )
