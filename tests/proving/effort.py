"""The effort of a run, and its seed; both come from the environment, so that every worker has the same."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")

EFFORT = "RETRYSAFE_EFFORT"
SEED = "RETRYSAFE_SEED"


def is_full() -> bool:
    """Tell whether this is `make prove`, which takes its time."""
    return os.environ.get(EFFORT, "short") == "full"


def effort(short: T, full: T) -> T:
    """Return the first in `make test`, and the second in `make prove`."""
    return full if is_full() else short


def seed() -> int:
    """The seed of this run: of the commit, unless the environment names one. Each commit tries other cells."""
    if SEED not in os.environ:
        os.environ[SEED] = str(_seed_of_commit())
    return int(os.environ[SEED])


def _seed_of_commit() -> int:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        said = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no repository, such as in the source distribution
        return secrets.randbelow(10**9)
    return int(said, 16) % 10**9


def chance_of(name: str) -> Random:
    """Chance for one test, from the seed of the run and the test's name: the same alone as among others."""
    return Random(f"{seed()} {name}")
