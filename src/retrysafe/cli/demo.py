"""`retrysafe demo`: see what retries do to payments, with and without retrysafe.

Three APIs, each with four uvicorn workers, charge a mock bank for clients that retry, while answers are lost, workers
are killed and stopped, and requests come twice, by one schedule made from the seed. Then the bank's ledger is
compared with what was intended.
With --pipeline the orders of a shop follow: order, outbox, relays, a broker, inboxes, stock and mails, in processes
that are killed by the same seed, while messages come twice. Then tables and mailbox are compared with the orders.
Exit code: 0 if retrysafe charged and applied nothing twice, lost nothing and altered nothing; 1 if it did; 2 if the
demo could not be run.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retrysafe.errors import ConfigurationError

PACKAGE = "retrysafe_demo"
DEFAULT_PAYMENTS = 120
DEFAULT_ORDERS = 120


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "demo",
        help="see what retries do to payments, with and without retrysafe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="run the schedule of an earlier demo again (default: a new one)"
    )
    parser.add_argument(
        "--payments",
        metavar="N",
        type=int,
        help=f"how many payments (default: {DEFAULT_PAYMENTS}, or all of FILE)",
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="your payments: a CSV file with the columns id, account, amount, currency",
    )
    parser.add_argument(
        "--bank-without-keys",
        action="store_true",
        help="a bank without idempotency keys: payments in doubt end as 'uncertain'",
    )
    parser.add_argument(
        "--functions",
        action="store_true",
        help="workers that take payments from a queue and call a guarded function, instead of an API",
    )
    parser.add_argument(
        "--pipeline",
        action="store_true",
        help="also send orders through outbox, relays, a broker (a SQLite file) and inboxes",
    )
    parser.add_argument(
        "--orders", metavar="N", type=int, help=f"how many, with --pipeline (default: {DEFAULT_ORDERS})"
    )
    parser.add_argument("--store", metavar="URL", help="where retrysafe keeps its records (default: a new SQLite file)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the audit to FILE")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="keep the bank's ledgers, the records and the logs in DIR"
    )
    parser.add_argument("--plain", action="store_true", help="print plain lines even on a terminal")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    if find_spec(PACKAGE) is None:
        raise ConfigurationError("The demo is a separate package: pip install 'retrysafe[demo]'.")
    code: int = import_module(f"{PACKAGE}.command").run(options)
    return code
