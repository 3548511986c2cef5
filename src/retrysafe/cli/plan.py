"""`retrysafe plan`: the records, bytes, requests and sweeping that a load makes in a store.

Nothing is asked of any store: the plan is arithmetic from measured constants, true for bytes and log within a fifth
(bytes of MySQL and MariaDB: within a half), and for the number of requests.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from retrysafe.admin import capacity
from retrysafe.admin.capacity import CapacityPlan, PlannedLoad
from retrysafe.backends.footprint import Sizes
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.rendering import render_size
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations

_UNITS = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "KiB": 1 << 10, "MiB": 1 << 20}
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "plan", "calculate what a store needs for a load", run, __doc__)
    add_option(parser, "--kind", "the kind of store", required=True, choices=capacity.kinds())
    add_option(parser, "--rate N/UNIT", "new keys at the peak, as in 50/s or 2000000/d", required=True)
    add_option(parser, "--window TIME", "window= of the boundary, as in 24h", required=True)
    add_option(parser, "--memory TIME", "memory= of the boundary (default: the window)")
    add_option(parser, "--result SIZE", "a stored result, as in 2kB", "500B")
    add_option(parser, "--names SIZE", "boundary, scope and operation", "40B")
    add_option(parser, "--duplicates SHARE", "of all calls", 0.05)
    add_option(parser, "--sweep-every TIME", "pause between sweeps", "1h")
    add_option(parser, "--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    window = durations.seconds(options.window, "--window")
    memory = window if options.memory is None else durations.seconds(options.memory, "--memory")
    if memory < window:
        raise ConfigurationError("--memory is shorter than --window: a key is remembered for its window at the least.")
    sizes = Sizes(size_of(options.names, "--names"), size_of(options.result, "--result"))
    every = durations.seconds(options.sweep_every, "--sweep-every")
    found = capacity.plan(options.kind, PlannedLoad(rate_of(options.rate), memory, sizes, options.duplicates, every))
    data = found._asdict() | {"footprint": found.footprint._asdict()}
    print(json.dumps(data) if options.json else "\n".join(_lines(options.kind, found)))
    return 0


def rate_of(text: str) -> float:
    """New keys a second. Raises `ConfigurationError` for text that is no rate."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([smhd]))?", text)
    if match is None:
        raise ConfigurationError(f"--rate={text!r} is not a rate: write 50/s, 3000/m or 2000000/d.")
    return float(match[1]) / _PERIODS[match[2] or "s"]


def size_of(text: str, option: str) -> int:
    """Bytes. Raises `ConfigurationError` for text that is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise ConfigurationError(f"{option}={text!r} is not a size: write 500, 500B, 2kB, 2KiB or 1MB.")
    return round(float(match[1]) * _UNITS[match[2]])


def _lines(kind: str, found: CapacityPlan) -> list[str]:
    each = found.footprint
    total = render_size(found.store_bytes + found.index_bytes)
    asked = f"{each.requests} for a new key, {each.replay_requests} for a replay"
    lines = [
        f"records        {found.records:,}",
        f"bytes          {total} ({render_size(each.record)} a record, {render_size(each.indexes)} in indexes)",
        f"requests       {found.requests:,.0f} a second: {asked}",
    ]
    if each.log:
        lines.append(f"log            {render_size(found.log_rate)} a second")
    if each.write_units:
        charged = f"{each.write_units} for a new key, {each.replay_units} for a replay"
        lines.append(f"write units    {found.write_units:,.0f} a second: {charged}")
    if found.sweepers:
        lines.append(f"sweep          {found.sweep:,.0f} records a second; sweepers needed: {found.sweepers}")
    else:
        lines.append(f"sweep          not needed: {kind} removes records by itself")
    if found.partitions > 1:
        lines.append(f"partitions     {found.partitions}: retrysafe migrate --partitions {found.partitions}")
    return [*lines, *(f"note           {note}" for note in each.notes)]
