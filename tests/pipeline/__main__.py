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
from pathlib import Path

from tests.pipeline.books import database
from tests.pipeline.brokers import KINDS
from tests.pipeline.running import Run, perform


def main() -> int:
    """Run on each broker, print what happened, and check."""
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline", description=__doc__)
    parser.add_argument(
        "brokers", nargs="*", metavar="BROKER", help=f"of {', '.join(KINDS)} (default: rabbitmq redis kafka)"
    )
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two kills, on average")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    options = parser.parse_args()
    broken = 0
    for kind in options.brokers or ("rabbitmq", "redis", "kafka"):
        with database(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as url, tempfile.TemporaryDirectory() as folder:
            run = Run(kind, KINDS[kind].url(Path(folder)), url, options.orders, options.every, options.seed)
            print(f"{kind}: {options.orders} orders, seed {options.seed}", flush=True)
            found = asyncio.run(perform(run))
            print(f"{run}\n  {found}, {run.left} left with the broker", flush=True)
            broken += not found.kept(options.orders) or run.left > 0
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
