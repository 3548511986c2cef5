"""A run of hours that goes on where it was stopped: what has passed is written down, and is not run again.

The journal is of one state of the tree. Another commit, or a file that was changed since, begins a new one.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WATCHED = ("src", "tests", "demo", "pyproject.toml")
"""What a proof depends on."""
WRITTEN = ":(exclude)tests/proving/proofs.json"
"""What a proof writes."""


def tree() -> str:
    """A digest of the commit, and of what was changed since."""
    found = hashlib.sha256()
    for command in (["rev-parse", *(f"HEAD:{name}" for name in WATCHED)], ["diff", "HEAD", "--", *WATCHED, WRITTEN]):
        found.update(subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True).stdout)
    return found.hexdigest()[:16]


class Journal:
    """The tests that have passed, with what they proved; one line each, as they end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seed: int | None = None
        self.passed: dict[str, list[dict[str, Any]]] = {}
        self._tree = tree()
        if path.exists():
            self._read()

    def _read(self) -> None:
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]  # the last line may have been cut off
        head, *lines = whole.split("\n")
        known = json.loads(head)
        if known["tree"] == self._tree:
            self.seed = known["seed"]
            self.passed = {one["test"]: one["proofs"] for one in map(json.loads, lines)}
            self.path.write_text(whole + "\n", encoding="utf-8")

    def begin(self, seed: int) -> None:
        """Write the head of a new journal; go on with one that has been begun."""
        if self.seed is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps({"tree": self._tree, "seed": seed}) + "\n", encoding="utf-8")
            self.seed = seed

    def add(self, test: str, proofs: list[dict[str, Any]]) -> None:
        """Note a test that has passed."""
        self.passed[test] = proofs
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "proofs": proofs}) + "\n")
