"""The requests to Cosmos DB that its store builds and its clients perform, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MISSING, CONFLICT, UNMET = 404, 409, 412


class ItemAnswer(NamedTuple):
    """The answer to a ItemCall: the status of its refusal, if that was expected, and what the library returned last."""

    refused: int | None
    body: Any


class ItemCall(NamedTuple):
    """One call of azure-cosmos: a method of the database or its container, or of what is reached from them.

    expected: the statuses of errors that are answers.
    follow: the call that its answer asks for, if any; that call's answer is then the answer.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    expected: tuple[int, ...] = ()
    follow: Callable[[ItemAnswer], ItemCall | None] = lambda _: None


def patch(key: bytes, operations: list[dict[str, Any]], condition: str) -> ItemCall:
    """A patch of a key's item, of at most ten operations; nothing is done unless the condition holds."""
    given = (key.hex(), key.hex(), operations)
    return ItemCall("container.patch_item", given, {"filter_predicate": condition}, expected=(MISSING, UNMET))
