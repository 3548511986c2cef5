"""The ratchet: no figure rises above the stored one, unless the reason is written down.

The file has a line for each measure: its value and, if it ever was let rise, the last reason for that.
"""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

FILE = Path(__file__).with_name("ratchet.toml")
TOLERANCE = 0.015
"""By so much counted instructions may exceed what is stored: those of the same code differ by up to 0.7 %."""
UNJUDGED = {"fork.ms"}
"""A time depends on the machine."""

HEAD = """\
# The ratchet: `make check` refuses a figure above the one that stands here; see CONTRIBUTING.md. Written by
# scripts/measure-house --update (what fell) and --accept MEASURE --why REASON (what rises).
"""


class Refused(Exception):
    """A command that is not obeyed."""


@dataclass(frozen=True)
class Entry:
    """The stored value of a measure."""

    value: float
    why: str = ""


@dataclass
class Ratchet:
    """The stored figures."""

    interpreter: str
    """The one that frames and instructions were counted on, as another has others."""
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = FILE) -> Ratchet:
        """Read the file."""
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(stored["interpreter"], {name: Entry(**entry) for name, entry in stored["measures"].items()})

    def write(self, path: Path = FILE) -> None:
        """Write the file."""
        lines = [HEAD, f"interpreter = {json.dumps(self.interpreter)}\n\n[measures]\n"]
        for name, entry in sorted(self.entries.items()):
            why = f", why = {json.dumps(entry.why, ensure_ascii=False)}" if entry.why else ""
            lines.append(f"{json.dumps(name)} = {{ value = {entry.value}{why} }}\n")
        path.write_text("".join(lines), encoding="utf-8")

    def rises(self, figures: Mapping[str, float], skipped: Collection[str] = ()) -> list[str]:
        """Say of each figure that may not stay as it is, why not and what to do; `skipped` were not measured."""
        found = [self._rise(name, value) for name, value in sorted(figures.items()) if self._is_above(name, value)]
        gone = sorted(self.entries.keys() - figures.keys() - set(skipped))
        return found + [f"{name}: stored, but nothing measures it. Take its line out of {FILE.name}." for name in gone]

    def falls(self, figures: Mapping[str, float]) -> list[str]:
        """Name each measure that could be lowered, with both values."""
        fell = {name: value for name, value in sorted(figures.items()) if self._is_below(name, value)}
        return [f"{name}: {self.entries[name].value:,} -> {value:,}" for name, value in fell.items()]

    def update(self, figures: Mapping[str, float]) -> None:
        """Lower what fell. On another interpreter than before, figures that hang on it are those of this one."""
        moved = self.interpreter != interpreter()
        if moved and (left := {name for name in self.entries if hangs_on_interpreter(name)} - figures.keys()):
            raise Refused(f"On another interpreter than {self.interpreter}, these must be measured too: {sorted(left)}")
        self.interpreter = interpreter()
        for name in self.entries.keys() & figures.keys():
            if self._is_below(name, figures[name]) or (moved and hangs_on_interpreter(name)):
                self.entries[name] = replace(self.entries[name], value=figures[name])

    def accept(self, names: Collection[str], why: str | None, figures: Mapping[str, float]) -> None:
        """Let measures rise, or begin one, for a reason."""
        if not why or not why.strip():
            raise Refused('--accept needs a reason: --why "..."')
        judged = figures.keys() - UNJUDGED
        if unknown := sorted(set(names) - judged):
            raise Refused(f"Not measured: {', '.join(unknown)}. There are: {', '.join(sorted(judged))}.")
        for name in names:
            self.entries[name] = Entry(figures[name], why.strip())

    def _is_above(self, name: str, value: float) -> bool:
        if name in UNJUDGED:
            return False
        stored = self.entries.get(name)
        return stored is None or value > stored.value + _slack(name, stored.value)

    def _is_below(self, name: str, value: float) -> bool:
        stored = self.entries.get(name)
        return stored is not None and value + _slack(name, value) < stored.value

    def _rise(self, name: str, value: float) -> str:
        accept = f'scripts/measure-house --accept {name} --why "reason"'
        if name not in self.entries:
            return f"{name}: measured {value:,}, stored nothing. Store it: {accept}"
        return f"{name}: measured {value:,}, stored {self.entries[name].value:,}. Lower it, or say why: {accept}"


def hangs_on_interpreter(name: str) -> bool:
    """Tell whether a measure is one of code that runs."""
    return not name.startswith(("src.", "tests."))


def interpreter() -> str:
    """Name what runs this, and how it was compiled."""
    implementation, version = platform.python_implementation(), platform.python_version()
    return f"{implementation} {version}, {platform.python_compiler()}, {platform.machine()}"


def _slack(name: str, value: float) -> float:
    return value * TOLERANCE if name.endswith(".instructions") else 0.0
