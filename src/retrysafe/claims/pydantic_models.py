"""Pydantic models as JSON values: written and read by the names of their fields, whatever their aliases are.

A model's own serializers decide what is written, so that nothing is stored that the model hides. When it is written, it
is read again and compared; when it is read later, everything that was stored must have found its field.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pydantic

from retrysafe.claims.differences import difference


@functools.cache
def _knows_names() -> bool:
    """Tell whether this pydantic can read a model by the names of its fields (2.11 and later)."""
    major, minor = map(int, pydantic.VERSION.split(".")[:2])
    return (major, minor) >= (2, 11)


def write(model: Any) -> tuple[Any, bool]:
    """The model as a JSON value, and whether by names (True) or by aliases, as is left for validators that need these.

    Raises TypeError, saying where, when neither would come back as it is.
    """
    complaint = None
    for by_name in (True, False) if _knows_names() else (False,):
        plain = _dump(model, by_name)
        try:
            found = difference(model, read(type(model), plain, by_name))
        except Exception as error:  # noqa: BLE001 - a model's validators may raise anything
            found = f" could not be read again: {error}"
        if found is None:
            return plain, by_name
        complaint = complaint or found
    raise TypeError(f"{type(model).__qualname__}{complaint}")


def read(kind: Any, plain: Any, by_name: bool) -> Any:
    """The model of that class that was written so; raises what its validators raise."""
    text = json.dumps(plain)
    return kind.model_validate_json(text, by_alias=False, by_name=True) if by_name else kind.model_validate_json(text)


def read_whole(kind: Any, plain: Any, by_name: bool) -> Any:
    """`read`, which raises TypeError when the class of today passes over something, or makes something else of it."""
    model = read(kind, plain, by_name)
    found = _losses(plain, _dump(model, by_name))
    if found is not None:
        raise TypeError(f"the stored {kind.__qualname__}{found}: was a field renamed, removed or given another type?")
    return model


def _dump(model: Any, by_name: bool) -> Any:
    return model.model_dump(mode="json", by_alias=not by_name, round_trip=True, warnings=False)


def _losses(stored: Any, again: Any) -> str | None:
    """Find a stored JSON value that is lost when it is read again; new members, by their defaults, do no harm."""
    if type(stored) is not type(again):
        return " is read as something else"
    if isinstance(stored, dict):
        for name, member in stored.items():
            found = _losses(member, again[name]) if name in again else " is not known"
            if found is not None:
                return f".{name}{found}"
        return None
    if isinstance(stored, list):
        return _losses_of_list(stored, again)
    return None if repr(stored) == repr(again) else " is read as something else"


def _losses_of_list(stored: list[Any], again: list[Any]) -> str | None:
    if len(stored) != len(again):
        return " is read with another number of members"
    found = next((f"[{i}]{lost}" for i, lost in enumerate(map(_losses, stored, again)) if lost is not None), None)
    if found is not None and sorted(map(json.dumps, stored)) == sorted(map(json.dumps, again)):
        return None  # the members of a set have no order
    return found
