"""Plans: how large a schedule is, what goes wrong in it, and which parts of retrysafe are on stage."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Clocks, Effects, Micros


class Fault(StrEnum):
    """The faults of one message."""

    UNSENT = "request never sent"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    DELAYED = "request delayed until after its sender gave up"
    DUPLICATED = "request applied twice"
    CRASHED_BEFORE = "sender crashed before the request"
    CRASHED_AFTER = "sender crashed after the request"
    PAUSED_BEFORE = "sender paused, perhaps beyond its lease, before the request"
    PAUSED_AFTER = "sender paused, perhaps beyond its lease, after the request"
    CANCELLED = "caller cancelled"
    CLOCK_JUMPED = "the store's clock jumped"
    SWEPT = "a sweep ran in between"
    EVICTED = "the cache lost the key before the request"
    STALE = "the cache answered from an earlier state"


LIES = (Fault.EVICTED, Fault.STALE)
"""Faults of a cache alone."""
TRUTHFUL = tuple(fault for fault in Fault if fault not in LIES)


class Plan(NamedTuple):
    """The size of a schedule, its faults, and who takes part beside workers and an operator."""

    workers: int = 3
    keys: int = 1
    effects: tuple[Effects, ...] = ("keyed", "external")
    faults: tuple[Fault, ...] = TRUTHFUL
    chance: float = 0.3
    """The chance that a message meets a fault."""
    clocks: Clocks = Clocks(lease=1000, window=2000, memory=2500)
    skew: Micros = 600
    """The largest error of the store's clock, either way.

    Tokens are promised to increase over a sweep as long as that is less than a quarter of the key memory.
    """
    horizon: Micros = 7000
    """The end of faults."""
    quantum: Micros = 1
    """The steps of the store's clock."""
    intruder: float = 0.1
    """The chance that a worker comes with another payload."""
    hasty: float = 0.0
    """The chance that the operator settles an effect that he sees although its attempt may still be alive."""
    probes: float = 0.0
    """The chance that a worker has a probe."""
    sweeper: Literal["", "removes", "archives"] = ""
    batch: int = 1
    """The number of records that a sweeper removes at a time."""
    cached: Micros = 0
    """For how long a cache in front of the store keeps an answer, at most; 0: there is no cache."""
    fleet: bool = False
    """True if workers of two versions are live, while the schema is migrated under them."""
    outstanding: int = 0
    """The number of keys that the quota lets the scope have at once; 0: there is no quota."""
    rate: int = 0
    """The number of new keys that the quota allows in a window; 0: any number."""

    def scaled(self, factor: int, quantum: Micros) -> Plan:
        """The same plan in longer times, for a store whose clock has coarser steps."""
        clocks = Clocks(*(duration * factor for duration in self.clocks))
        return self._replace(
            clocks=clocks,
            skew=self.skew * factor,
            horizon=self.horizon * factor,
            cached=self.cached * factor,
            quantum=quantum,
        )


PLAN = Plan()
CRASHES = (Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER)
PAUSES = (Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER)
_SWEEPER_ONLY = tuple(fault for fault in TRUTHFUL if fault is not Fault.SWEPT)
_LONG_MEMORY = Clocks(lease=1000, window=2000, memory=5000)

PLANS: dict[str, Plan] = {
    "basic": PLAN,
    "keyed": PLAN._replace(workers=6, effects=("keyed",), chance=0.6),
    "external": PLAN._replace(workers=6, effects=("external",), chance=0.6),
    "several keys": PLAN._replace(workers=6, keys=3),
    "intruders": PLAN._replace(intruder=0.5),
    "long memory": PLAN._replace(clocks=Clocks(lease=1000, window=1500, memory=3000)),
    "duplicates and delays": PLAN._replace(faults=(Fault.DUPLICATED, Fault.DELAYED), chance=0.6),
    "crashes and pauses": PLAN._replace(faults=CRASHES + PAUSES, chance=0.6),
    "probes": PLAN._replace(effects=("external", "external", "keyed"), probes=0.7, hasty=0.3),
    "sweeper": PLAN._replace(keys=2, workers=4, sweeper="removes", faults=_SWEEPER_ONLY, horizon=9000),
    "archive": PLAN._replace(keys=2, workers=4, sweeper="archives", faults=_SWEEPER_ONLY, batch=2, horizon=9000),
    "layered": PLAN._replace(workers=4, cached=1200),
    "lying cache": PLAN._replace(workers=4, cached=1200, faults=tuple(Fault), chance=0.4),
    "two versions": PLAN._replace(workers=4, fleet=True, intruder=0.05, horizon=9000),
    "quota": PLAN._replace(workers=5, keys=4, outstanding=2, rate=3, clocks=_LONG_MEMORY, horizon=9000),
    "everything": PLAN._replace(
        workers=5,
        keys=2,
        faults=tuple(fault for fault in Fault if fault is not Fault.SWEPT),
        probes=0.5,
        sweeper="archives",
        cached=1200,
        fleet=True,
        horizon=10_000,
    ),
}
"""The plans that a soak goes through, by the name that its command line knows."""


def named(text: str) -> Plan:
    """The plan that a command line names: one of `PLANS`, or as `PLAN` but for what JSON says."""
    if text in PLANS:
        return PLANS[text]
    if not text.startswith("{"):
        raise ConfigurationError(f"--plan {text!r}: expected JSON, or one of: {', '.join(PLANS)}.")
    said: dict[str, Any] = json.loads(text)
    if unknown := said.keys() - PLAN._asdict().keys():
        raise ConfigurationError(f"--plan: a plan has no {', '.join(sorted(unknown))}.")
    if "faults" in said:
        said["faults"] = tuple(Fault[name] for name in said["faults"])
    if "clocks" in said:
        said["clocks"] = Clocks(*said["clocks"])
    if "effects" in said:
        said["effects"] = tuple(said["effects"])
    return PLAN._replace(**said)


def name_of(plan: Plan) -> str:
    """The name by which `named` finds the plan again."""
    for name, known in PLANS.items():
        if known == plan:
            return name
    said: dict[str, Any] = {name: value for name, value in plan._asdict().items() if value != PLAN._asdict()[name]}
    if "faults" in said:
        said["faults"] = [fault.name for fault in plan.faults]
    return json.dumps(said)
