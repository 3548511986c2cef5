"""The instructions of a call, counted by callgrind: the same on a busy machine, to within `ratchet.TOLERANCE`.

One program (`counted`) does all kinds of calls, since most of the time passes before the first of them. What the bare
application takes is no part of the figures of a request. The median of several blocks leaves out single events, such
as a thread that wakes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from houseparts import ROOT, SOURCE
from houseparts.counted import BLOCKS, CALLS, SEGMENTS

NAMES = frozenset(f"{segment}.instructions" for segment in SEGMENTS if segment != "asgi-bare")
MISSING = "valgrind is missing (Debian: apt-get install valgrind)"


def available() -> bool:
    """Tell whether callgrind is installed."""
    return shutil.which("valgrind") is not None


class Counting:
    """A run of the program, which goes on while other things are measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        options = ["--tool=callgrind", "--separate-threads=yes", "--dump-before=getloadavg", "--vgdb=no"]
        options.append(f"--callgrind-out-file={folder / 'out'}")
        paths = os.pathsep.join(map(str, (SOURCE.parent, ROOT / "scripts")))
        # -S: nothing of site-packages, which counts for nothing here, and takes long
        self._program = subprocess.Popen(
            ["valgrind", "-q", *options, sys.executable, "-S", "-m", "houseparts.counted"],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def figures(self) -> dict[str, float]:
        """Wait for the end, and divide."""
        _, errors = self._program.communicate()
        if self._program.returncode:
            raise SystemExit(f"callgrind failed with {self._program.returncode}: {errors}")
        # the first part is what comes before the first mark; thread 1 is the main thread
        parts = [self._folder / f"out.{number + 2}-01" for number in range(len(SEGMENTS) * BLOCKS)]
        if missing := [part.name for part in parts if not part.exists()]:
            raise SystemExit(f"callgrind has not written {', '.join(missing)}: it saw no call of getloadavg. {errors}")
        blocks = [_total(part) // CALLS for part in parts]
        counted = {name: median(blocks[n * BLOCKS :][:BLOCKS]) for n, name in enumerate(SEGMENTS)}
        bare = counted.pop("asgi-bare")
        return {f"{name}.instructions": count - bare * name.startswith("asgi") for name, count in counted.items()}


def _total(part: Path) -> int:
    found = re.search(r"^totals: (\d+)", part.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, part
    return int(found[1])
