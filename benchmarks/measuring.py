"""Interleaved measurement: all contenders by turns, so that what disturbs the machine disturbs them alike.

``python -m benchmarks.measuring MODULE ROW EFFORT FILE`` measures one row, and writes what it found to the file.
"""

from __future__ import annotations

import itertools
import json
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Turn
from benchmarks.services import counting

_numbers = itertools.count()
_run = secrets.token_hex(3)
WARMING = 32
"""The number of operations that a contender does at least before its time counts."""
COUNTED = 64
"""The number of operations whose round trips are counted."""


class Effort(NamedTuple):
    """The effort of a measurement: turns of each contender, and about how many seconds one takes."""

    rounds: int
    seconds: float


EFFORTS = {"full": Effort(21, 0.15), "usual": Effort(7, 0.1), "quick": Effort(3, 0.02)}


def measure(row: Row, effort: Effort) -> dict[str, Any]:
    """Return the cost of every turn of every contender, and the rivals that could not take part."""
    errors: dict[str, str] = {}
    turns: dict[str, list[Turn]] = {}
    with ExitStack() as stack:
        sides = _opened(row, stack, errors)
        counts = {name: row.operations or _operations(row, side, effort.seconds) for name, side in sides.items()}
        rounds = effort.rounds if row.operations is None else min(effort.rounds, 5)
        for number in range(rounds):
            for name, side in sorted(sides.items(), reverse=bool(number % 2)):
                turns.setdefault(name, []).append(_turn(side, counts[name], replay=row.replay))
    trips = round_trips(row, tuple(turns)) if row.counted else {}
    contenders = {
        name: {
            "spent": [_shortened(turn.spent) for turn in taken],
            "cpu": [_shortened(turn.cpu) for turn in taken if turn.cpu is not None] or None,
            "operations": counts[name],
            "round_trips": trips.get(name),
        }
        for name, taken in turns.items()
    }
    return {"name": row.name, "beside": row.beside, "unit": row.unit, "contenders": contenders, "errors": errors}


def _shortened(value: float) -> float:
    """Four digits, which is more than any turn is worth."""
    return float(f"{value:.4g}")


def round_trips(row: Row, names: Sequence[str]) -> dict[str, float]:
    """Count the round trips of each contender's operation to its server."""
    found = {}
    for name in names:
        with counting(row.counted) as counters, row.contenders[name]() as side:
            _pass(side, _keys(COUNTED), replay=row.replay)
            keys = _keys(COUNTED)
            if row.replay:
                side.work(keys)
            before = sum(counter.round_trips for counter in counters)
            side.work(keys)
            found[name] = (sum(counter.round_trips for counter in counters) - before) / COUNTED
    return found


def _opened(row: Row, stack: ExitStack, errors: dict[str, str]) -> Mapping[str, Side]:
    """The contenders that work; a rival that doesn't is noted."""
    sides = {}
    for name, opener in row.contenders.items():
        try:
            sides[name] = _tried(row, stack, opener)
        except Exception as error:
            if name in (OURS, FLOOR):
                raise
            errors[name] = repr(error)
    return sides


def _tried(row: Row, stack: ExitStack, opener: Opener) -> Side:
    with ExitStack() as own:
        side = own.enter_context(opener())
        _pass(side, _keys(min(WARMING, row.operations or WARMING)), replay=row.replay)
        stack.push(own.pop_all())
    return side


def _operations(row: Row, side: Side, seconds: float) -> int:
    """Return the number of operations that fill a turn."""
    count = 1
    while True:
        keys = _keys(count)
        began = time.perf_counter()
        _pass(side, keys, replay=row.replay)
        if (took := time.perf_counter() - began) > seconds / 4:
            return max(1, round(count * seconds / took))
        count *= 4


def _turn(side: Side, count: int, *, replay: bool) -> Turn:
    keys = _keys(count)
    if replay:
        side.work(keys)
    wall, cpu = time.perf_counter(), side.cpu()
    measured = side.work(keys)
    return measured or Turn((time.perf_counter() - wall) / count, (side.cpu() - cpu) / count)


def _pass(side: Side, keys: Sequence[str], *, replay: bool) -> None:
    for _ in range(1 + replay):
        side.work(keys)


def _keys(count: int) -> list[str]:
    return [f"order-{_run}-{number}" for number in itertools.islice(_numbers, count)]


def main() -> None:
    """Measure one row of a module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored by its children
    module, name, effort, file = sys.argv[1:]
    (row,) = (row for row in import_module(module).rows() if row.name == name)
    Path(file).write_text(json.dumps(measure(row, EFFORTS[effort])), encoding="utf-8")


if __name__ == "__main__":
    main()
