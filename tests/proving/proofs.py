"""The injections and sights of tests, gathered from every worker of a run into one file."""

from __future__ import annotations

import json
import platform
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.backends.registry import stores
from tests.proving import effort

MODES = ("transactional", "transactional, tx=", "keyed", "external")
ALSO_CALLED = {"mariadb": "mysql", "valkey": "redis"}


class Proof(NamedTuple):
    """One line of evidence: ``injected`` faults of one kind, on one store in one mode, and the promises they broke."""

    part: str
    """The kind of proof: "crash points", "lost messages", "histories", "simulation", "kills", "mutants", …"""
    store: str
    """"postgresql", "sqlite", …, with a driver if that matters ("postgresql, asyncpg"); empty where none is meant."""
    mode: str
    """"transactional", "transactional, tx=", "keyed", "external"; empty where none is meant."""
    fault: str
    """In words, such as "reply lost"; one wording for one fault."""
    injected: int
    broken: int = 0
    """Broken promises; a test with any fails, so this is what an honest report says: 0."""
    rows: tuple[int, ...] = ()
    """Rows of the fault catalogue."""

    @property
    def kind(self) -> str:
        """The store without its driver, as the catalogue of stores calls it."""
        name = re.split(r"[+,]", self.store)[0]
        return ALSO_CALLED.get(name, name)


def checked(proof: Proof) -> Proof:
    """The proof, if the guarantees page can say whose it is; ValueError otherwise."""
    names = [store.capabilities.name for store in stores()]
    if proof.kind not in ("", *names):
        raise ValueError(f"store={proof.store!r}: begin it with one of {', '.join(names)}, or leave it empty")
    if proof.mode not in ("", *MODES):
        raise ValueError(f"mode={proof.mode!r}: write one of {', '.join(map(repr, MODES))}, or leave it empty")
    return proof


def gathered(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each part, store, mode and fault, with sums."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in found:
        known = sums.setdefault(
            (one["part"], one["store"], one["mode"], one["fault"]), {**one, "injected": 0, "broken": 0, "rows": []}
        )
        known["injected"] += one["injected"]
        known["broken"] += one["broken"]
        known["rows"] = sorted({*known["rows"], *one["rows"]})
    return [sums[name] for name in sorted(sums)]


class Run(NamedTuple):
    """A run and all that it proved, as its file tells it."""

    seed: int
    effort: str
    """"short" or "full"."""
    command: str
    """The arguments of pytest: a run of a part says so."""
    versions: dict[str, str]
    tests: dict[str, int]
    """The number of tests by outcome: passed, failed, skipped."""
    proofs: list[Proof]


def write(
    path: Path, found: Iterable[dict[str, Any]], versions: dict[str, str], tests: dict[str, int], command: str = ""
) -> None:
    """Write the file that the guarantees page is made from."""
    known = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **versions}
    document = {
        "seed": effort.seed(),
        "effort": "full" if effort.is_full() else "short",
        "command": command,
        "versions": dict(sorted(known.items())),
        "tests": tests,
        "proofs": gathered(found),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Run | None:
    """Read a run that `write` has written; None if none has been recorded."""
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    proofs = [Proof(**{**one, "rows": tuple(one["rows"])}) for one in document.pop("proofs")]
    return Run(**{"command": "", **document}, proofs=proofs)
