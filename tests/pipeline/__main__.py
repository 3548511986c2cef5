"""``python -m tests.pipeline``: orders through outbox, three relays, a broker, three inboxes, while all six are killed.

Needs the variables of the services (``scripts/services env``). Exit code 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.pipeline.books import database
from tests.pipeline.brokers import KILLED, KINDS
from tests.pipeline.running import Run, perform

DEFAULT = "rabbitmq redis kafka"


@contextmanager
def run_on(name: str, options: argparse.Namespace, url: str) -> Iterator[Run]:
    """On the shared broker of this name, or on one's own, which is killed too."""
    asked = (options.orders, options.every, options.seed)
    if not options.kill_broker:
        with tempfile.TemporaryDirectory() as folder:
            yield Run(name, KINDS[name].url(Path(folder)), url, *asked)
        return
    killed = KILLED[name]
    with closing(killed.opened()) as server:
        yield Run(killed.kind, server.url, url, *asked, server=server, others_go_on=killed.others_go_on)


def main() -> int:
    """Run on each broker, print what happened, and check."""
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline", description=__doc__)
    parser.add_argument("brokers", nargs="*", metavar="BROKER", help=f"of {', '.join(KINDS)} (default: {DEFAULT})")
    parser.add_argument(
        "--kill-broker", action="store_true", help=f"kill one's own broker too: {', '.join(KILLED)} (default: all)"
    )
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two kills, on average")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    options = parser.parse_args()
    broken = 0
    for name in options.brokers or (KILLED if options.kill_broker else DEFAULT.split()):
        with database(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as url, run_on(name, options, url) as run:
            print(f"{name}: {options.orders} orders, seed {options.seed}", flush=True)
            found = asyncio.run(perform(run))
            print(f"{run}\n  {found}, {run.left} left with the broker", flush=True)
            broken += not found.kept(options.orders) or run.left > 0
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
