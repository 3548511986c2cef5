"""`import retrysafe` in a bare interpreter: no site-packages, nothing loaded before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import retrysafe
from benchmarks.rows import MILLISECONDS, Row, Side, Sides, one_by_one

_SOURCE = Path(retrysafe.__file__).parent.parent


def rows() -> Sequence[Row]:
    """The time to import the library, beside an interpreter that only starts."""
    return [Row("import retrysafe", _imports, MILLISECONDS, 50)]


@contextmanager
def _imports() -> Iterator[Sides]:
    path = f"import sys; sys.path.append({str(_SOURCE)!r})"
    yield Sides(_interpreter(f"{path}; import retrysafe"), _interpreter(path))


def _interpreter(code: str) -> Side:
    command = (sys.executable, "-I", "-S", "-c", code)
    return one_by_one(lambda key: subprocess.run(command, check=True))
