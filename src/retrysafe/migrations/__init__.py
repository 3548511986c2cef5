"""The versioned SQL files of each dialect."""

from __future__ import annotations

import re
from functools import cache

from retrysafe.programs.migrating import Migration

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@cache
def load(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect ("sqlite", "postgresql") in order of version."""
    from importlib.resources import files

    found: list[Migration] = []
    for file in files(__name__).joinpath(dialect).iterdir():
        match = _NAME.fullmatch(file.name)
        if match is not None:
            found.append(Migration(int(match[1]), match[2], _statements(file.read_text())))
    return tuple(sorted(found))


def script(dialect: str, after: int = 0) -> str:
    """Return the SQL of the migrations after a version, for those who apply it themselves."""
    parts = ["BEGIN;"]
    for migration in load(dialect):
        if migration.version > after:
            record = f"INSERT INTO retrysafe_schema (version, name) VALUES ({migration.version}, '{migration.name}')"
            parts += [f"-- {migration.version:04d} {migration.name}"]
            parts += [f"{statement};" for statement in (*migration.statements, record)]
    return "\n".join([*parts, "COMMIT;"]) + "\n"


def _statements(text: str) -> tuple[str, ...]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return tuple(part.strip(" ;\n") for part in "\n".join(lines).split(";\n") if part.strip(" ;\n"))
