"""`retrysafe demo`: see what retries do to payments, with and without retrysafe.

Three APIs, each with four uvicorn workers, charge a mock bank for clients that retry, while answers are lost, workers
are killed and stopped, and requests come twice, by one schedule made from the seed. Then the bank's ledger is
compared with what was intended.
With --pipeline the orders of a shop follow: order, outbox, relays, a broker, inboxes, stock and mails, in processes
that are killed by the same seed, while messages come twice; then tables and mailbox are compared with the orders.
Exit code: 0 if retrysafe charged and applied nothing twice, lost nothing and altered nothing; 1 if it did; 2 if the
demo could not be run.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DEFAULT_PAYMENTS = 120
DEFAULT_ORDERS = 120
MOST_COMPLAINTS = 5


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
        help="a bank that knows no idempotency keys: doubt ends in 'uncertain'",
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
    from retrysafe.demo.payments import InputError
    from retrysafe.demo.processes import DemoError

    try:
        return _run(options)
    except (InputError, DemoError) as error:
        print(f"retrysafe demo: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    from retrysafe.demo.posts import Form
    from retrysafe.demo.report import write_json
    from retrysafe.demo.run import Options
    from retrysafe.demo.run import run as run_demo
    from retrysafe.demo.view import choose

    payments, orders = _payments(options), _orders(options)
    seed = secrets.randbelow(100_000) if options.seed is None else options.seed
    bank = "with" if not options.bank_without_keys else "without"
    again = "" if options.seed is not None else f" (--seed {seed} runs it again)"
    form = _form(functions=options.functions)
    lanes = "3 APIs of 4 uvicorn workers" if form is Form.HTTP else "3 lanes of 4 workers"
    print(f"{len(payments)} payments, {lanes}, a bank {bank} idempotency keys, seed {seed}{again}", flush=True)
    if orders:
        print(
            f"then {orders} orders through outbox, 2 relays, a broker, and 2 inboxes each of stock and mail", flush=True
        )
    asked = Options(seed, payments, not options.bank_without_keys, options.store, options.keep, form, orders)
    findings = run_demo(asked, choose(plain=options.plain))
    for complaint in findings.complaints[:MOST_COMPLAINTS]:
        print(f"retrysafe demo: not scheduled: {complaint}", file=sys.stderr)
    if options.json is not None:
        write_json(findings, options.json)
    return findings.exit_code


def _orders(options: argparse.Namespace) -> int:
    from retrysafe.demo.payments import InputError

    if options.orders is not None and not options.pipeline:
        raise InputError("--orders goes with --pipeline")
    wanted = DEFAULT_ORDERS if options.orders is None else options.orders
    if wanted < 1:
        raise InputError(f"--orders {wanted}: at least one order is needed")
    return wanted if options.pipeline else 0


def _form(*, functions: bool) -> Any:
    """What the workers do: an API needs two packages that may not be there."""
    from retrysafe.demo.posts import Form

    if functions:
        return Form.FUNCTIONS
    missing = [name for name in ("uvicorn", "starlette") if find_spec(name) is None]
    if not missing:
        return Form.HTTP
    print(
        f"Without {' and '.join(missing)} (pip install 'retrysafe[demo]') there is no API: the demo calls functions, "
        "as with --functions.",
        flush=True,
    )
    return Form.FUNCTIONS


def _payments(options: argparse.Namespace) -> Any:
    from retrysafe.demo.payments import InputError, load, shipped, take

    if options.payments is not None and options.payments < 1:
        raise InputError(f"--payments {options.payments}: at least one payment is needed")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise InputError(f"--json {options.json}: there is no such folder")
    found = load(options.input) if options.input is not None else shipped()
    wanted = options.payments or (len(found) if options.input is not None else DEFAULT_PAYMENTS)
    return take(found, wanted)
