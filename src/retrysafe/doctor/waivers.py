"""Waivers: findings that a team has accepted, each with a reason and an end."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.errors import ConfigurationError


class Waiver(NamedTuple):
    """A finding that is accepted: its id, the subjects (a pattern with ``*``), why, and the last day it holds."""

    id: str
    subject: str
    reason: str
    until: date


def read_waivers(path: str | Path, known: Iterable[str]) -> list[Waiver]:
    """Read the ``[[waiver]]`` tables of a TOML file.

    Raises `ConfigurationError` for a file that cannot be read, and for a waiver without a reason or an end, or of a
    check that is not ``known``.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("waiver", [])
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--waivers {path}: {error}") from error
    return [_waiver(path, table, set(known)) for table in tables]


def _waiver(path: str | Path, table: dict[str, Any], known: set[str]) -> Waiver:
    name, reason, until = table.get("id"), table.get("reason"), table.get("until")
    if name not in known:
        raise ConfigurationError(f"--waivers {path}: id = {name!r} is no check; see  retrysafe doctor --list")
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigurationError(f"--waivers {path}: the waiver of {name} has no reason.")
    if type(until) is not date:
        raise ConfigurationError(f"--waivers {path}: the waiver of {name} has no end: write  until = 2027-01-31")
    return Waiver(name, str(table.get("subject", "*")), reason, until)


def apply_waivers(found: Iterable[Diagnosis], waivers: list[Waiver], today: date) -> list[Diagnosis]:
    """The findings, with the reason of the waiver that covers each. One that has ended covers nothing."""
    return [one._replace(waived=_reason(one, waivers, today)) for one in found]


def _reason(found: Diagnosis, waivers: list[Waiver], today: date) -> str | None:
    for waiver in waivers:
        if waiver.id == found.id and fnmatchcase(found.subject, waiver.subject) and today <= waiver.until:
            return f"{waiver.reason} (until {waiver.until})"
    return None
