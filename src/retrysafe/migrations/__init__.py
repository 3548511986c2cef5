"""The versioned SQL files of each dialect."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from retrysafe.programs.migrating import Migration

VERSION = "SELECT max(version) FROM retrysafe_schema"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@cache
def load(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect ("sqlite", "postgresql") in order of version."""
    found: list[Migration] = []
    for file in _folder(dialect).iterdir():
        match = _NAME.fullmatch(file.name)
        if match is not None:
            found.append(Migration(int(match[1]), match[2], _statements(file.read_text())))
    return tuple(sorted(found))


def dialects() -> tuple[str, ...]:
    """The dialects that have a schema."""
    from importlib.resources import files

    return tuple(sorted(path.name for path in files(__name__).iterdir() if path.joinpath("0001_records.sql").is_file()))


def forward(dialect: str, version: int) -> tuple[str, ...]:
    """Return the statements of one migration, and the one that records it."""
    migration = _migration(dialect, version)
    record = f"INSERT INTO retrysafe_schema (version, name) VALUES ({version}, '{migration.name}')"
    return (*migration.statements, record)


def backward(dialect: str, version: int) -> tuple[str, ...]:
    """Return the statements that undo one migration, and the one that forgets it; the first one takes all records."""
    migration = _migration(dialect, version)
    undone = _statements(_folder(dialect).joinpath(f"{version:04d}_{migration.name}.down.sql").read_text())
    return undone if version == 1 else (f"DELETE FROM retrysafe_schema WHERE version = {version}", *undone)


def _migration(dialect: str, version: int) -> Migration:
    for migration in load(dialect):
        if migration.version == version:
            return migration
    raise LookupError(f"retrysafe's {dialect} schema has no version {version}")


def _folder(dialect: str) -> Any:
    from importlib.resources import files

    return files(__name__).joinpath(dialect)


def script(dialect: str, after: int = 0) -> str:
    """Return the SQL of the migrations after a version, for those who apply it themselves."""
    parts = ["BEGIN;"]
    for migration in load(dialect):
        if migration.version > after:
            parts += [f"-- {migration.version:04d} {migration.name}"]
            parts += [f"{statement};" for statement in forward(dialect, migration.version)]
    return "\n".join([*parts, "COMMIT;"]) + "\n"


def _statements(text: str) -> tuple[str, ...]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return tuple(part.strip(" ;\n") for part in "\n".join(lines).split(";\n") if part.strip(" ;\n"))
