"""The faults and their times: a pure function of the seed and the payments, the same for every lane."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum


class Fault(StrEnum):
    """One thing that goes wrong with one delivery of a payment."""

    TIMEOUT = "the worker gives up waiting while the bank is about to charge"
    LOST_REPLY = "the charge is made and the connection breaks before the answer"
    KILL_BEFORE_CHARGE = "the worker is killed before the charge"
    KILL_AFTER_CHARGE = "the worker is killed after the charge, before it has noted it"
    CONCURRENT = "two workers get the payment and stand before the charge together"
    KILL_BEFORE_ANSWER = "the worker is killed when all is noted, before it has answered"
    PAUSE_BEFORE_CHARGE = "the worker is stopped before the charge, for longer than its lease"
    PAUSE_AFTER_CHARGE = "the worker is stopped after the charge, for longer than its lease"


REPEATABLE = (Fault.TIMEOUT, Fault.LOST_REPLY, Fault.KILL_BEFORE_CHARGE, Fault.KILL_AFTER_CHARGE)
"""After these the guarded payment is still open, so that another fault can follow."""
LAST = (Fault.CONCURRENT, Fault.KILL_BEFORE_ANSWER, Fault.PAUSE_BEFORE_CHARGE, Fault.PAUSE_AFTER_CHARGE)
"""After these it is settled; a payment has one of them at most, as its last fault."""
KILLS = (Fault.KILL_BEFORE_CHARGE, Fault.KILL_AFTER_CHARGE, Fault.KILL_BEFORE_ANSWER)
PAUSES = (Fault.PAUSE_BEFORE_CHARGE, Fault.PAUSE_AFTER_CHARGE)
_BRIEF = (*REPEATABLE, Fault.CONCURRENT, Fault.KILL_BEFORE_ANSWER)
FAULTY = 0.15
"""The share of payments that have a fault, beyond the guaranteed ones."""
TWICE_FAULTY = 0.3
"""The share of those that have a second one."""

Schedule = Mapping[str, Sequence[Fault]]
"""Payment id → the faults of its first, second … delivery; further deliveries go well."""


def schedule(seed: int, ids: Iterable[str]) -> Schedule:
    """Every kind of fault strikes at least once if there are four payments or more.

    With fewer, there is no room for all of `LAST`; those of `REPEATABLE` are always there. A worker killed after the
    charge alone makes the unsafe and the naive lane charge twice, whatever the seed.
    """
    chance = random.Random(f"retrysafe demo {seed}")
    order = list(ids)
    chance.shuffle(order)
    open_to_more: dict[str, list[Fault]] = {name: [] for name in order}
    last: dict[str, Fault] = {}

    def strike(name: str, fault: Fault) -> None:
        if fault in REPEATABLE:
            open_to_more[name].append(fault)
        else:
            last.setdefault(name, fault)

    guaranteed = [*chance.sample(LAST, len(LAST)), *chance.sample(REPEATABLE, len(REPEATABLE))]
    if len(order) >= 40:
        guaranteed += PAUSES
    for position, fault in enumerate(guaranteed):
        strike(order[position % len(order)], fault)
    for name in order[len(guaranteed) :]:
        if chance.random() < FAULTY:
            strike(name, chance.choice(_BRIEF))
            if chance.random() < TWICE_FAULTY:
                strike(name, chance.choice(REPEATABLE))
    return {name: (*open_to_more[name], *([last[name]] if name in last else [])) for name in order}
