"""Expressions of DynamoDB with their placeholders, and items as Python values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from retrysafe.backends.documents import Document
from retrysafe.protocol.records import Micros, State

CONDITION = frozenset({"ConditionalCheckFailedException"})
"""The refusal of a request whose condition is not met, as an expected answer."""
STORED_AS: Mapping[str, str] = {"tombstone_until": "forget"}
"""Attributes that items have had under another name since 0.1."""
_NAMED: Mapping[str, str] = {stored: name for name, stored in STORED_AS.items()}
_PLACEHOLDER = re.compile(r"([#:])(\w+)")
_STATES = {state.value: state.value for state in State}


def express(values: Mapping[str, Any], **expressions: str) -> dict[str, Any]:
    """Expressions as arguments of a request, such as ``ConditionExpression``, with the names and values they use.

    A value that is not given is the name of a state.
    """
    given = {name: expression for name, expression in expressions.items() if expression}
    names, used = _placeholders(*given.values())
    arguments: dict[str, Any] = {**given}
    if names:
        arguments["ExpressionAttributeNames"] = names
    if used:
        arguments["ExpressionAttributeValues"] = {
            f":{name}": _value(values[name] if name in values else _STATES[name]) for name in used
        }
    return arguments


@lru_cache(maxsize=256)
def _placeholders(*expressions: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The attribute names that expressions use, and their values' names: neither more nor fewer may be given."""
    found = [match for expression in expressions for match in _PLACEHOLDER.findall(expression)]
    names = {f"#{name}": STORED_AS.get(name, name) for mark, name in found if mark == "#"}
    return names, tuple(dict.fromkeys(name for mark, name in found if mark == ":"))


def item_of(document: Document) -> dict[str, Any]:
    return {name: _value(value) for name, value in document.items()}


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"B": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": str(value)}


_READERS = {"B": bytes, "N": int, "S": str}


def document_of(item: Mapping[str, Mapping[str, Any]]) -> Document:
    return {
        _NAMED.get(name, name): _READERS[kind](value)
        for name, typed in item.items()
        for kind, value in typed.items()
        if kind in _READERS
    }


def ttl_of(tombstone_until: Micros) -> int:
    """The first whole second at which the item may go.

    Every read judges by ``tombstone_until``: removal is late by days.
    """
    return tombstone_until // 1_000_000 + 1
