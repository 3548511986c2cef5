"""Runs `retrysafe demo` with its options."""

from __future__ import annotations

import argparse
import secrets
import sys
from importlib.util import find_spec

from retrysafe.cli.demo import DEFAULT_ORDERS, DEFAULT_PAYMENTS
from retrysafe_demo.payments import InputError, Payment, load, shipped, take
from retrysafe_demo.posts import Form
from retrysafe_demo.processes import DemoError
from retrysafe_demo.report import write_json
from retrysafe_demo.run import Options
from retrysafe_demo.run import run as run_demo
from retrysafe_demo.view import choose

MOST_COMPLAINTS = 5


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    try:
        return _run(options)
    except (InputError, DemoError) as error:
        print(f"retrysafe demo: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
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
    if options.orders is not None and not options.pipeline:
        raise InputError("--orders goes with --pipeline")
    wanted = DEFAULT_ORDERS if options.orders is None else options.orders
    if wanted < 1:
        raise InputError(f"--orders {wanted}: at least one order is needed")
    return wanted if options.pipeline else 0


def _form(*, functions: bool) -> Form:
    """Choose the form of the workers: an API needs two packages that may not be there."""
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


def _payments(options: argparse.Namespace) -> list[Payment]:
    if options.payments is not None and options.payments < 1:
        raise InputError(f"--payments {options.payments}: at least one payment is needed")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise InputError(f"--json {options.json}: there is no such folder")
    found = load(options.input) if options.input is not None else shipped()
    wanted = options.payments or (len(found) if options.input is not None else DEFAULT_PAYMENTS)
    return take(found, wanted)
