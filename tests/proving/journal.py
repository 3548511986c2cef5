"""A run of hours that goes on where it was stopped: what has passed is written down, and is not run again.

A test that has passed counts as long as what it depends on is as it was: the product, and the modules of the tests that
its own module names, and so on. A changed product begins anew; a changed test only what leads to it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("src", "demo", "pyproject.toml")
"""The files that every proof depends on."""
IMPORTED = re.compile(r"^\s*from ((?:tests|benchmarks|examples)[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
WRITTEN = "proofs.json"
"""The file that a proof writes."""
NAMED = re.compile(r"\b(?:tests|benchmarks|examples)(?:\.\w+)+")
"""Also in a string: a program that a test starts is named in one."""
PATHS = re.compile(r"\b(?:tests|benchmarks|examples)(?:/[\w-]+)+\.\w+")
"""In a string: breaks name the tests that kill them so."""


@cache
def product() -> str:
    """A digest of the product's files, whether they are committed or not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *PRODUCT]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = hashlib.sha256()
    for name in sorted(set(told.split("\0"))):
        if (ROOT / name).is_file():
            found.update(f"{name} {_digest(ROOT / name)}\n".encode())
    return found.hexdigest()


def state(test: str) -> str:
    """A digest of all that a test depends on, by its node id."""
    return _state_of(test.partition("::")[0])


@cache
def _state_of(path: str) -> str:
    found = hashlib.sha256(product().encode())
    for file in sorted(_depends(path)):
        found.update(_digest(file).encode())
    return found.hexdigest()[:16]


def _depends(path: str) -> set[Path]:
    """The files of a test: its own, what it names, and the `conftest.py` of the folders above it."""
    found: set[Path] = set()
    above = (folder / "conftest.py" for folder in (ROOT / path).parents if folder.is_relative_to(ROOT))
    ahead = {file for file in (ROOT / path, *above) if file.is_file()}
    while ahead:
        found |= ahead
        ahead = {named for file in ahead for named in _named_in(file)} - found
    return found


@cache
def _named_in(file: Path) -> set[Path]:
    """The files that it names, of those that there are."""
    if file.suffix != ".py":
        return set()
    text = file.read_text(encoding="utf-8")
    beside = (one for one in file.parent.iterdir() if one.suffix != ".py" and one.name != WRITTEN)
    named = {
        *(one for one in beside if one.name in text),
        *(path for name in _imported(text) for path in (*_files(name), *ROOT.joinpath(*name.split(".")).glob("*.py"))),
        *(path for name in NAMED.findall(text) for path in _files(name)),
        *(ROOT / path for path in PATHS.findall(text) if not path.endswith(f"/{WRITTEN}")),
    }
    return {path for path in named if path.is_file()}


def _imported(text: str) -> Iterator[str]:
    """Yield the imported names, with their module. Who imports a package itself may walk its modules."""
    for module, imported in IMPORTED.findall(text):
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", imported))


def _files(name: str) -> Iterator[Path]:
    """A module's file, and those of the packages that it is in; of a name in a module, the module's."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ROOT.joinpath(*parts[:count])
        yield path.with_suffix(".py")
        yield path / "__init__.py"


@cache
def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Journal:
    """The tests that have passed, with what they proved; one line each, as they end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seed: int | None = None
        self.passed: dict[str, list[dict[str, Any]]] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]  # the last line may have been cut off
        head, *lines = whole.split("\n")
        noted = list(map(json.loads, lines))
        self.passed = {one["test"]: one["proofs"] for one in noted if one.get("state") == state(one["test"])}
        if self.passed or not noted:
            self.seed = json.loads(head)["seed"]
            self.path.write_text(whole + "\n", encoding="utf-8")

    def begin(self, seed: int) -> None:
        """Write the head of a new journal; go on with one that has been begun."""
        for file in (ROOT / "tests").rglob("test_*.py"):  # now, whatever is edited while they run
            state(str(file.relative_to(ROOT)))
        if self.seed is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"seed": seed}) + "\n", encoding="utf-8")
            self.seed = seed

    def add(self, test: str, proofs: list[dict[str, Any]]) -> None:
        """Note a test that has passed."""
        self.passed[test] = proofs
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "state": state(test), "proofs": proofs}) + "\n")
