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

from retrysafe.cli.options import add_option, add_verb
from retrysafe.errors import ConfigurationError

PACKAGE = "retrysafe_demo"
DEFAULT_PAYMENTS = 120
DEFAULT_ORDERS = 120


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "demo", "see what retries do to payments, with and without retrysafe", run, __doc__)
    add_option(parser, "--seed N", "run the schedule of an earlier demo again (default: a new one)")
    add_option(parser, "--payments N", f"how many payments (default: {DEFAULT_PAYMENTS}, or all of FILE)")
    add_option(parser, "--input FILE", "your payments: a CSV file with the columns id, account, amount, currency")
    add_option(parser, "--bank-without-keys", "a bank without idempotency keys: payments in doubt end as 'uncertain'")
    add_option(
        parser, "--functions", "workers that take payments from a queue and call a guarded function, instead of an API"
    )
    add_option(parser, "--pipeline", "also send orders through outbox, relays, a broker (a SQLite file) and inboxes")
    add_option(parser, "--orders N", f"how many, with --pipeline (default: {DEFAULT_ORDERS})")
    add_option(parser, "--store URL", "where retrysafe keeps its records (default: a new SQLite file)")
    add_option(parser, "--json FILE", "also write the audit to FILE", type=Path)
    add_option(parser, "--keep DIR", "keep the bank's ledgers, the records and the logs in DIR", type=Path)
    add_option(parser, "--plain", "print plain lines even on a terminal")


def run(options: argparse.Namespace) -> int:
    if find_spec(PACKAGE) is None:
        raise ConfigurationError("The demo is a separate package: pip install 'retrysafe[demo]'.")
    code: int = import_module(f"{PACKAGE}.command").run(options)
    return code
