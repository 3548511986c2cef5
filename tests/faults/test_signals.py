"""Exceptions from signal handlers, wherever Python handles signals in our code: nothing stays locked or half used."""

from __future__ import annotations

import contextlib
import contextvars
import dis
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import retrysafe
from retrysafe import Boundary
from retrysafe.claims import context, lease
from retrysafe.locks import Places
from tests.faults.conftest import Making
from tests.faults.helpers import ask_sql

HOLDING = tuple(
    str(Path(retrysafe.__file__).parent / name)
    for name in ("backends/sql/drivers", "backends/driver.py", "claims", "locks.py")
)
"""Code of ours between the taking of a lock, connection or transaction and its return."""


class SoftTimeLimit(Exception):
    """What a signal handler raises, between any two lines."""


CHECKING = {dis.opmap[name] for name in ("CALL", "RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX") if name in dis.opmap}
"""Instructions after which Python looks for signals."""


@cache
def _moments(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which a signal is handled, under the same ``try`` as what came before."""
    ranges = [(entry.start, entry.end, entry.target) for entry in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((target for start, end, target in reversed(ranges) if start <= offset < end), None)

    found = set()
    instructions = list(dis.get_instructions(code))
    for before, after in pairwise(instructions):
        if before.opcode in CHECKING and handler(before.offset) == handler(after.offset):
            found.add(after.offset)
    return frozenset(found)


def interrupted_at(moment: int, work: Callable[[], Any]) -> int:
    """Raise it at one of the moments at which Python handles signals in code of ours; how many have passed."""
    left = [moment]

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _moments(frame.f_code):
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise SoftTimeLimit
        return step

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(HOLDING) and path != contextlib.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    except Exception:  # noqa: BLE001 - whichever it has become
        pass
    finally:
        sys.settrace(before)
    return moment - left[0]


@pytest.mark.parametrize(("effects", "stride"), [("transactional", 1), ("keyed", 1)])
def test_whatever_a_signal_interrupts_the_next_claim_is_served(
    effects: str, stride: int, make: Making, sqlite_url: str
) -> None:
    boundary: Boundary = make(f"{sqlite_url}?busy=100ms&synchronous=NORMAL", effects=effects, lease="60s")

    @boundary.once(key="key", operation="o")
    def work(key: str) -> str:
        return key

    work("warm")
    all_moments = interrupted_at(10**9, lambda: work("undisturbed"))
    assert all_moments > 50
    moments: list[int] = []
    for moment in range(1, all_moments + 1, stride):
        interrupted_at(moment, lambda: work(f"interrupted at {moment}"))  # noqa: B023 - called here
        assert context.enclosing() is None, f"moment {moment}"
        assert work(f"after {moment}") == f"after {moment}", f"moment {moment}"
        moments.append(moment)
    ((kept,),) = ask_sql(sqlite_url, "SELECT count(*) FROM retrysafe_records WHERE state = 'completed'")[0]
    assert kept >= len(moments) + 2, "an answer was given in a transaction that was never committed"


def test_whatever_a_signal_interrupts_no_lease_is_renewed_after_its_work(make: Making) -> None:
    """But for the one moment before the first instruction of ``__exit__``: nothing of ours has run there."""
    boundary: Boundary = make("memory://", lease="60s")

    @boundary.once(key="key", operation="o")
    def work(key: str) -> str:
        return key

    work("warm")
    renewed = lease.for_thread(boundary.entrypoint.backend)._schedule
    left = []
    for moment in range(1, interrupted_at(10**9, lambda: work("undisturbed")) + 1):
        contextvars.copy_context().run(interrupted_at, moment, lambda: work(f"at {moment}"))  # noqa: B023
        left += [moment] if renewed.new or renewed.leases else []
        renewed.new.clear()
    assert len(left) <= 1


def test_a_place_is_free_when_its_holder_is_gone() -> None:
    places, busy = Places(1), RuntimeError("busy")
    lending = places.taken(0, lambda: busy)
    lending.__enter__()
    with pytest.raises(RuntimeError, match="busy"), places.taken(0, lambda: busy):
        pytest.fail("it is taken")
    del lending
    with places.taken(0, lambda: busy):
        pass
