"""Values of a configuration file, checked: what is wrong is said with its line and its name. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations

Read = Callable[[Any], Any]
"""Makes a value of what the file has; raises `ValueError` with what is expected."""

_HEADER = re.compile(r"\s*\[\[?\s*([\w.\"-]+)\s*\]\]?")
_NAME = re.compile(r"""\s*["']?([\w-]+)["']?\s*[=.]""")
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class TomlSource(NamedTuple):
    """A file: its name for people, and its text."""

    name: str
    text: str

    def line(self, table: str, number: int, key: str) -> int | None:
        """Find the line of a key: in the ``number``-th table of this name, or inside an inline table."""
        inline = None
        current, seen = "", {"": 0}
        for at, line in enumerate(self.text.splitlines(), 1):
            header = _HEADER.match(line)
            if header is not None and "=" not in line.partition("#")[0]:
                current = header[1].replace('"', "")
                seen[current] = seen.get(current, -1) + 1
                continue
            named = _NAME.match(line)
            if (current, seen[current]) == (table, number) and named is not None and named[1] == key:
                return at
            if inline is None and re.search(rf"[{{,]\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                inline = at
        return inline

    def wrong(self, table: str, number: int, key: str, what: str) -> ConfigurationError:
        """The error to raise about a key."""
        at = self.line(table, number, key)
        where = self.name if at is None else f"{self.name}, line {at}"
        inside = f" of [{table}]" if table else ""
        return ConfigurationError(f"{where}: {key}{inside}: {what}")


class TomlTable(NamedTuple):
    """One table of the file."""

    source: TomlSource
    name: str
    number: int
    values: Mapping[str, Any]

    def read(self, known: Mapping[str, Read]) -> dict[str, Any]:
        """Its values, made by ``known``; raises `ConfigurationError` for a key that is not known, or a value."""
        found = {}
        for key, value in self.values.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}."
                raise self.wrong(key, f"there is no such setting; {hint}")
            try:
                found[key] = known[key](value)
            except (ValueError, ConfigurationError) as error:
                raise self.wrong(key, getattr(error, "detail", "") or str(error)) from error
        return found

    def wrong(self, key: str, what: str) -> ConfigurationError:
        return self.source.wrong(self.name, self.number, key, what)


# ---------------------------------------------------------------- kinds of values


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text.")
    return value


def texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list of texts.")
    return tuple(map(text, value))


def number(value: Any) -> int:
    """A whole number from 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0.")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false.")
    return value


def seconds(value: Any) -> float:
    return durations.seconds(value, "the value")


def size(value: Any) -> int:
    """Bytes: a number, or text such as "64 MiB"."""
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())) is not None:
        return int(found[1]) * _UNITS[found[2]]
    try:
        return number(value)
    except ValueError:
        raise ValueError(f'{value!r} is no size: write 1048576 or "64 MiB".') from None


def statuses(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or not all(isinstance(one, int) and 100 <= one <= 599 for one in value):
        raise ValueError(f"{value!r} is no list of HTTP statuses.")
    return frozenset(value)


def duplicates(value: Any) -> float | None:
    """Parse the treatment of simultaneous duplicates: "reject", or the seconds to wait."""
    if value == "reject":
        return None
    try:
        return seconds(value)
    except ConfigurationError:
        raise ValueError(f'{value!r} is neither "reject" nor how long to wait, such as "5s".') from None


def address(value: Any) -> tuple[str, int]:
    """HOST:PORT; an IPv6 host stands in brackets."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"{value!r} is no address such as 127.0.0.1:8080 or [::1]:8080.")
    return host.strip("[]") or "0.0.0.0", int(port)


def networks(value: Any) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(map(ip_network, texts(value)))
