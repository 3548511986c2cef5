"""The requests to DynamoDB that its store builds and its client executes, and their answers."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One DynamoDB call. Error codes that are ``expected`` are answers; ``waits``: it names a waiter of the library."""

    operation: str
    arguments: Mapping[str, Any]
    expected: frozenset[str] = frozenset()
    waits: bool = False


class Answer(NamedTuple):
    """The answer to a Call: an error code that was expected, or None, and the response with it."""

    refused: str | None
    response: Mapping[str, Any]
