"""`retrysafe sweep`: remove the records of forgotten keys.

Removes small batches until none is left; never a running or unknown record. Steps whose record is gone go, too. Any
number of sweeps may run concurrently. SIGTERM and SIGINT stop it after its current batch; a second one ends it at
once, without the summary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrysafe.admin.archive import JsonLines
from retrysafe.admin.sweeper import Sweeper
from retrysafe.cli.opening import add_store, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.progress import show_progress
from retrysafe.cli.stopping import end_by_signals
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.events import Event, Observer


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "sweep", "remove the records of forgotten keys", run, __doc__)
    add_store(parser)
    add_pace(parser)
    add_option(
        parser, "--archive FILE", "first append the removed records to FILE as JSON lines, results included", type=Path
    )
    add_option(parser, "--rotate", "rewrite PostgreSQL partitions instead of deleting row by row")


def add_pace(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--batch N", "records at a time", 1000)
    add_option(parser, "--pause TIME", "minimum pause after a full batch", "10ms")
    add_option(parser, "--limit N", "stop after about N records")
    add_option(parser, "--every TIME", "run until stopped, and sweep again after this time, as in 1h")


def run(options: argparse.Namespace) -> int:
    if options.limit is not None and options.rotate:
        raise ConfigurationError("--limit is a number from 1, and cannot be combined with --rotate or --every.")
    return carry_out(
        options,
        lambda total: Sweeper(
            store_of(options),
            every=options.every or "1h",
            batch=options.batch,
            pause=options.pause,
            archive=None if options.archive is None else JsonLines(options.archive),
            rotate=options.rotate,
            observers=[total],
        ),
    )


def carry_out(options: argparse.Namespace, make: Callable[[Observer], Sweeper], *, what: str = "records") -> int:
    if options.limit is not None and (options.limit < 1 or options.every):
        raise ConfigurationError("--limit is a number from 1, and cannot be combined with --rotate or --every.")
    total = _Total(what)
    sweeper = make(total)
    try:
        with end_by_signals(sweeper.stop, lambda: _WAITS, _complain):
            if sweeper.serves_sync:
                _sweep(sweeper, options)
            else:
                asyncio.run(_asweep(sweeper, options))
    except OSError as error:
        raise ConfigurationError(f"--archive: {error}. Records that were not archived were not removed.") from error
    finally:
        total.skipped, total.too_large = sweeper.swept.skipped, sweeper.swept.too_large
        print(total.as_json() if options.json else total.as_text(), flush=True)
    return 0


_TOO_LARGE = "swept row by row, because a copy took too long (use more partitions)"
_WAITS = "the current batch is still being removed."


def _complain(text: str) -> None:
    print(f"retrysafe sweep: {text}", file=sys.stderr, flush=True)


def _sweep(sweeper: Sweeper, options: argparse.Namespace) -> None:
    if options.every is not None:
        sweeper.run_forever()
        return
    with show_progress(lambda: _so_far(sweeper)):
        sweeper.run_once(options.limit)


async def _asweep(sweeper: Sweeper, options: argparse.Namespace) -> None:
    if options.every is not None:
        await sweeper.arun_forever()
        return
    with show_progress(lambda: _so_far(sweeper)):
        await sweeper.arun_once(options.limit)


def _so_far(sweeper: Sweeper) -> str:
    return f"removed {sweeper.swept.removed:,}"


class _Total:
    """Adds up the sweeper's events, so that the summary is correct even if the store fails in between."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.removed = self.archived = self.repaired = 0
        self.seconds = 0.0
        self.skipped: tuple[str, ...] = ()
        self.too_large: tuple[str, ...] = ()

    def __call__(self, event: Event, /) -> None:
        fields = event.fields
        if event.name == "swept":
            self.removed += fields["removed"]
            self.archived += fields["archived"]
            self.repaired += fields["repaired"]
            self.seconds += fields["seconds"]
        else:
            _complain(f"{fields['error']} (retrying)")

    def as_json(self) -> str:
        return json.dumps({name: value for name, value in vars(self).items() if name != "_what"})

    def as_text(self) -> str:
        archived = f"archived {self.archived} and " if self.archived else ""
        locked = f"; skipped, because in use (sweep again later): {', '.join(self.skipped)}" if self.skipped else ""
        large = f"; {_TOO_LARGE}: {', '.join(self.too_large)}" if self.too_large else ""
        repaired = f"; gave back their expiry to {self.repaired} that had lost it" if self.repaired else ""
        return f"{archived}removed {self.removed} {self._what} in {self.seconds:.1f} s{repaired}{locked}{large}"
