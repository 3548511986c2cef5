"""How much a run tries, and from which seed; both come from the environment, so that every worker has the same."""

from __future__ import annotations

import os
import secrets
from random import Random
from typing import TypeVar

T = TypeVar("T")

EFFORT = "RETRYSAFE_EFFORT"
SEED = "RETRYSAFE_SEED"


def is_full() -> bool:
    """Whether this is `make prove`, which takes its time."""
    return os.environ.get(EFFORT, "short") == "full"


def effort(short: T, full: T) -> T:
    """What a test uses in `make test`, and what in `make prove`."""
    return full if is_full() else short


def seed() -> int:
    """The seed of this run: a new one, unless the environment names it."""
    return int(os.environ.setdefault(SEED, str(secrets.randbelow(10**9))))


def chance_of(name: str) -> Random:
    """Chance for one test, from the seed of the run and the test's name: the same alone as among others."""
    return Random(f"{seed()} {name}")
