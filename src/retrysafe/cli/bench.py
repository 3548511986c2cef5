"""`retrysafe bench`: claims per second and their latency, of your store, from this machine.

Threads of one process claim keys of three profiles: "fresh" (a new key each time), "replay" (completed keys) and
"storm" (all clients claim one new key at once; one runs). The keys belong to a boundary with a random name, and are
forgotten in the end; no other record is read or written. It is a load on the store: run it beside production only if
that has room for it. `retrysafe plan` calculates what a rate needs.
Exit code: 0 if no key ran twice; 1 if one did; 2 if the store could not be measured, such as that every
claim of a profile failed, or still has records of the run. Those that a second interrupt leaves are forgotten later.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from retrysafe.admin import capacity, measuring
from retrysafe.admin.capacity import CapacityPlan
from retrysafe.admin.forgetting import Forgotten
from retrysafe.admin.measuring import PREFIX, WINDOW, BenchLoad, BenchProfile, Measured, Measurement
from retrysafe.backends.footprint import Sizes
from retrysafe.cli.opening import add_store, commands_of, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.plan import size_of
from retrysafe.cli.rendering import as_json, lines, render_size, say, table
from retrysafe.errors import RetrysafeError
from retrysafe.protocol import durations

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""The signals that end a run; Windows has no SIGHUP."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_HEAD = ("profile", "claims", "per second", *(f"{name} ms" for name in _SHARES), "ran", "replayed", "refused")


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "bench", "measure the claims that a store gives this machine", run, __doc__)
    add_store(parser)
    add_option(
        parser,
        "--profile ...",
        "only this profile; may be repeated (default: all three)",
        choices=[profile.value for profile in BenchProfile],
    )
    add_option(parser, "--clients N", "threads at the same time", 8)
    length = parser.add_mutually_exclusive_group()
    add_option(length, "--seconds S", "how long each profile lasts", 5.0)
    add_option(length, "--claims N", "instead: how many claims each profile makes")
    add_option(parser, "--result SIZE", "each stored result, as in 2kB", "500B")
    add_option(
        parser, "--forget BOUNDARY", f"measure nothing: forget what a run has left behind under its boundary, {PREFIX}…"
    )


def run(options: argparse.Namespace) -> int:
    if options.forget is not None:
        return _forget_left(options)
    load = BenchLoad(
        options.clients,
        size_of(options.result, "--result"),
        None if options.claims is not None else options.seconds,
        options.claims,
    )
    profiles = [profile for profile in BenchProfile if not options.profile or profile.value in options.profile]
    with _interruptible(), measuring.measuring(store_of(options), load) as measurement:
        try:
            measured = [measurement.run(profile) for profile in profiles]
            _show(_Report(measurement, load, measured), options)
        except BaseException:  # such as a closed pipe
            _forget(measurement, options)
            raise
        clean = _forget(measurement, options)
    if any(one.ran_twice for one in measured):
        return 1
    return 0 if clean and all(one.claims for one in measured) else 2


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for all of them, and for SIGINT where a shell has it ignored: records are left else.

    A SIGHUP that is ignored stays so: that is how `nohup` lets a run go on.
    """
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    ours = [one for one in numbers if one is signal.SIGINT or signal.getsignal(one) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in ours]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


# ---------------------------------------------------------------- forgetting


def _forget(measurement: Measurement, options: argparse.Namespace) -> bool:
    """Forget the records of the run; False, and the command that does it later, if some are left."""
    try:
        done = measurement.forget()
    except BaseException as error:
        why = (error.detail or str(error)) if isinstance(error, RetrysafeError) else type(error).__name__
        _say_left(measurement.name, f"Not all records were forgotten: {' '.join(why.split())}.", options)
        if isinstance(error, RetrysafeError):
            return False
        raise
    if done.left:
        _say_left(measurement.name, _render_left(done), options)
    return not done.left


def _say_left(boundary: str, why: str, options: argparse.Namespace) -> None:
    command = commands_of(options).line("bench", [("forget", boundary)])
    print(
        f"retrysafe: {why} They are forgotten {WINDOW} after they were written, or now by:  {command}", file=sys.stderr
    )


def _render_left(done: Forgotten) -> str:
    return f"{done.left} records are held by attempts whose end is not stored; their leases end within 30 s."


def _forget_left(options: argparse.Namespace) -> int:
    done = measuring.forget_boundary(store_of(options), options.forget)
    print(as_json(done._asdict()) if options.json else f"forgotten: {done.forgotten}")
    if done.left:
        print(f"retrysafe: {_render_left(done)} Then run this again.", file=sys.stderr)
    return 2 if done.left else 0


# ---------------------------------------------------------------- output


class _Report(NamedTuple):
    """The measurements, and their conditions."""

    measurement: Measurement
    load: BenchLoad
    measured: Sequence[Measured]

    def plan(self) -> tuple[float, CapacityPlan] | None:
        """The measured rate of new keys, and what it needs; None where it was not measured or there is no plan."""
        rate = next((one.rate for one in self.measured if one.profile is BenchProfile.FRESH), 0.0)
        if not rate or self.measurement.kind not in capacity.kinds():
            return None
        sizes = Sizes(len(self.measurement.name) + len(BenchProfile.FRESH), self.load.result)
        return rate, capacity.plan(
            self.measurement.kind,
            capacity.PlannedLoad(rate, durations.seconds(WINDOW, "window"), sizes, duplicates=0.0),
        )


def _show(report: _Report, options: argparse.Namespace) -> None:
    if options.json:
        print(as_json(_as_data(report)), flush=True)
    else:
        say(_as_text(report))
        sys.stdout.flush()


def _as_data(report: _Report) -> dict[str, Any]:
    planned = report.plan()
    return {
        "store": report.measurement.address,
        "kind": report.measurement.kind,
        "boundary": report.measurement.name,
        "clients": report.load.clients,
        "result": report.load.result,
        "profiles": [_profile(one) for one in report.measured],
        "plan": None if planned is None else {**planned[1]._asdict(), "footprint": planned[1].footprint._asdict()},
    }


def _profile(one: Measured) -> dict[str, Any]:
    return {
        "profile": one.profile.value,
        "claims": one.claims,
        "seconds": one.seconds,
        "rate": one.rate,
        "latency_ms": dict(zip(_SHARES, _latencies(one), strict=True)),
        "ran": one.ran,
        "replayed": one.replayed,
        "refused": one.refused,
        "errors": dict(one.errors),
        "ran_twice": list(one.ran_twice),
    }


def _latencies(one: Measured) -> list[float]:
    """Milliseconds."""
    return [round(one.latency(share) * 1e3, 3) for share in _SHARES.values()]


def _as_text(report: _Report) -> Iterator[str]:
    measurement, load = report.measurement, report.load
    only = " (records of this process only: no other process, and no restart, sees them)"
    yield from lines(
        {
            "store": measurement.address + (only if measurement.kind == "memory" else ""),
            "clients": f"{load.clients} threads of this process",
            "result": render_size(load.result),
            "boundary": measurement.name,
        }
    )
    yield ""
    yield from table([_row(one) for one in report.measured], _HEAD)
    yield ""
    for one in report.measured:
        for name, count in one.errors.items():
            yield f"!! {one.profile}: {count} claims failed with {name}"
        if one.ran_twice:
            shown = ", ".join(one.ran_twice[:10])
            yield f"!! {one.profile}: {len(one.ran_twice)} keys ran more than once: {shown}"
        if not one.claims:
            yield f"!! {one.profile}: no claim was answered"
    if not any(one.ran_twice for one in report.measured):
        yield "no key ran twice"
    if (planned := report.plan()) is not None:
        yield from _plan(measurement.kind, *planned, load.result)


def _row(one: Measured) -> tuple[str, ...]:
    times = [f"{value:.2f}" for value in _latencies(one)]
    counts = [f"{count:,}" for count in (one.ran, one.replayed, one.refused)]
    return (one.profile.value, f"{one.claims:,}", f"{one.rate:,.0f}", *times, *counts)


def _plan(kind: str, rate: float, found: CapacityPlan, result: int) -> Iterator[str]:
    total = render_size(found.store_bytes + found.index_bytes)
    yield (
        f"{rate:,.0f} new keys a second, remembered for {WINDOW}, would be {found.records:,} records of {total}, and "
        f"{found.requests:,.0f} requests a second. For your own rate:"
    )
    yield f"  retrysafe plan --kind {kind} --rate N/s --window {WINDOW} --result {result}B"
