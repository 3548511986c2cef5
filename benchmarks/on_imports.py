"""`import retrysafe` and its `Boundary`, in a bare interpreter: no site-packages, nothing loaded before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import retrysafe
from benchmarks.rows import FLOOR, OURS, Row, Side, one_by_one

_PATH = f"import sys; sys.path.append({str(Path(retrysafe.__file__).parent.parent)!r})"


def rows() -> Sequence[Row]:
    """The time to import what a first claim needs, beside an interpreter that only starts."""
    sides = {
        OURS: partial(_interpreter, f"{_PATH}; import retrysafe; retrysafe.Boundary"),
        FLOOR: partial(_interpreter, _PATH),
    }
    return [Row("import retrysafe", "an interpreter that only starts", sides, operations=4)]


@contextmanager
def _interpreter(code: str) -> Iterator[Side]:
    command = (sys.executable, "-I", "-S", "-c", code)
    yield one_by_one(lambda key: subprocess.run(command, check=True))
