"""The requests to Redis that its store builds and its clients execute."""

from typing import Any, NamedTuple


class Script(NamedTuple):
    """One Redis script by name, with the keys and arguments of this call."""

    name: str
    source: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]


class Scan(NamedTuple):
    """One page of the Redis keys that match ``pattern``, and a script that is run for each of them.

    ``lasting``: only for keys that would never expire by themselves.
    """

    pattern: bytes
    cursor: str | None
    size: int
    script: Script
    lasting: bool = False


class Scanned(NamedTuple):
    """The answer to a Scan: keys with the script's answers, and the next cursor (None: the end)."""

    found: list[tuple[bytes, Any]]
    cursor: str | None


class Settings(NamedTuple):
    """Asks each Redis master for its INFO and for these of its settings. A setting that it refuses to show is missing.

    The answer is one mapping of names to texts for each master.
    """

    names: tuple[str, ...]
