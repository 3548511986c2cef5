"""`python -m tests.proving.mutation`: the figures of a run of mutmut over the core, for the guarantees page.

mutmut writes how each mutant ended beside the mutants (`mutants/src/retrysafe/protocol/*.meta`). Survivors that nobody
could tell from the original are listed with reasons in `equivalents.json`: they are counted, and left out of the score.
A mutant that no test reaches has survived; one whose tests did not end in time is not counted as killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "proving"
CORE = ROOT / "mutants" / "src" / "retrysafe" / "protocol"

SURVIVED, TIMEOUT, KILLED = "survived", "timeouts", "killed"
_KILLED = (1, 3)
_SURVIVED = (0, 5, 33)
_OUT_OF_TIME = (-24, 24, 36, 152, 255)


class Mutant(NamedTuple):
    """The change of a mutant: lines of one file, without their indentation."""

    file: str
    before: str
    after: str


def ending(code: int | None) -> str:
    """Return the end of a mutant, by mutmut's exit code for it; raises `ValueError` for one that was not judged."""
    if code in _KILLED:
        return KILLED
    if code in _SURVIVED:
        return SURVIVED
    if code in _OUT_OF_TIME:
        return TIMEOUT
    raise ValueError(f"A mutant ended with {code}: it was not judged. Run mutmut to its end.")


def counted(endings: Iterable[str], equivalent: int) -> dict[str, Any]:
    """The figures of some mutants, ``equivalent`` of which survived and cannot be told from the original."""
    counts = Counter(endings)
    mutants = sum(counts.values())
    rest = mutants - equivalent
    return {
        "mutants": mutants,
        KILLED: counts[KILLED],
        SURVIVED: counts[SURVIVED] - equivalent,
        TIMEOUT: counts[TIMEOUT],
        "equivalent": equivalent,
        "score": round(counts[KILLED] / rest, 4) if rest else 1.0,
    }


def document(results: Mapping[str, list[str]], equivalents: Counter[str]) -> dict[str, Any]:
    """The figures of every file, and of all together."""
    everything = [one for endings in results.values() for one in endings]
    per_file = {file: counted(endings, equivalents[file]) for file, endings in sorted(results.items()) if endings}
    return {
        "tool": "mutmut",
        "version": version("mutmut"),
        **counted(everything, sum(equivalents.values())),
        "per_file": per_file,
    }


def changed(diff: str, file: str) -> Mutant:
    """Parse the change of a mutant from its diff."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(mark)) for mark in "-+")
    return Mutant(file, before, after)


def _shown(name: str, file: str) -> Mutant:
    command = [sys.executable, "-m", "mutmut", "show", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return changed(done.stdout, file)


def main() -> int:
    """Write `mutation.json`, and print the survivors; exit code 1 if a reason is given for a mutant that is killed."""
    reasons = json.loads((HERE / "equivalents.json").read_text(encoding="utf-8"))
    known = {Mutant(one["file"], one["before"], one["after"]) for one in reasons}
    results: dict[str, list[str]] = {}
    equivalents: Counter[str] = Counter()
    seen: set[Mutant] = set()
    for meta in sorted(CORE.glob("*.meta")):
        file = f"protocol/{meta.name.removesuffix('.meta')}"
        results[file] = []
        for name, code in json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"].items():
            results[file].append(ending(code))
            if results[file][-1] == KILLED:
                continue
            mutant = _shown(name, file)
            if mutant in known and results[file][-1] == SURVIVED:
                seen.add(mutant)
                equivalents[file] += 1
            else:
                print(f"{results[file][-1]}: {name}\n  - {mutant.before}\n  + {mutant.after}")
    found = document(results, equivalents)
    (HERE / "mutation.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in found.items() if name != "per_file"})
    for stale in sorted(known - seen):
        print(f"equivalents.json gives a reason for a mutant that does not survive: {stale}")
    return 1 if known - seen else 0


if __name__ == "__main__":
    raise SystemExit(main())
