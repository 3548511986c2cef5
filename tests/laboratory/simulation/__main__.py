"""The command line: one schedule told in full, or many on all cores.

python -m tests.laboratory.simulation --seed 7 --plan everything
python -m tests.laboratory.simulation --seeds 1000000 --from 0
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from retrysafe.errors import ConfigurationError
from tests.laboratory.simulation.network import parse_faults
from tests.laboratory.simulation.plan import PLANS, named
from tests.laboratory.simulation.schedule import Script, simulate
from tests.laboratory.simulation.soak import Work, factory, soak, tell_failure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 when a promise was broken."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        if asked.seed is not None:
            return _one(asked)
        plans = tuple(PLANS) if asked.plan is None else (asked.plan,)
        for plan in plans:
            named(plan)
    except ConfigurationError as error:
        parser.error(str(error))
    seeds = range(asked.first, asked.first + asked.seeds)
    found = soak(Work(seeds, plans, asked.store, not asked.whole), processes=asked.processes)
    return 1 if found.failures else 0


def _one(asked: argparse.Namespace) -> int:
    script = None
    if asked.faults is not None or asked.without:
        script = Script(parse_faults(asked.faults or ""), frozenset(asked.without.split()))
    plan = named(asked.plan or "basic")
    report = simulate(asked.seed, plan=plan, subject=factory(asked.store), script=script)._replace(store=asked.store)
    if report.ok or script is not None or asked.whole:
        print(report)
    else:
        tell_failure(report, asked.store, shrinks=True, out=sys.stdout)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.laboratory.simulation",
        description="Simulate the protocol: one schedule (--seed), or many until one breaks a promise (--seeds).",
    )
    parser.add_argument("--seed", type=int, help="play this schedule, and tell it in full")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many seeds to go through (default: 10000)")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--plan", help=f"{', '.join(PLANS)}; or JSON of what differs from basic (default: all in turn)")
    parser.add_argument("--store", default="", metavar="MODULE:FACTORY", help="a factory of a Subject: your store")
    parser.add_argument("--faults", help="with --seed: these faults alone, as a report prints them")
    parser.add_argument("--without", default="", metavar="ACTORS", help="with --seed: leave these actors out")
    parser.add_argument("--whole", action="store_true", help="do not cut a failing schedule down")
    parser.add_argument("--processes", type=int, help="how many (default: as many as there are cores)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
