"""`retrysafe conformance http`, `client`, `store`: check whether a server, a client or a store keeps its contract.

A server has to offer the conformance fixture, about 60 lines: see the reference page "The conformance fixture". A
client is a command that makes one POST with a key to the URL in RETRYSAFE_UPSTREAM; it is run once for each rule.
Exit code: 0 if no rule failed; 1 if one did; 2 if the server, client or store could not be checked.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect, forget
from retrysafe.cli.opening import add_verbs
from retrysafe.conformance import clients
from retrysafe.conformance.capabilities import MODES, Capabilities, parse
from retrysafe.conformance.profiles import PROFILES
from retrysafe.conformance.report import FORMATS, Report
from retrysafe.conformance.running import run
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.http.keys import HEADER
from retrysafe.testing.conformance import CASES, Bench
from retrysafe.testing.harness import AsyncHarness, SyncHarness

_FORMATS = ("markdown", "json", "junit")


def add_to(verbs: Any) -> None:
    """Add the verb and the verbs below it to the command line."""
    below = add_verbs(verbs, "conformance", "check whether a server, a client or a store keeps its contract", __doc__)
    _add_http(below)
    _add_client(below)
    _add_store(below)


def _add_http(verbs: Any) -> None:
    parser = verbs.add_parser(
        "http", help="check an HTTP server", description="Check an HTTP server, rule by rule, over real connections."
    )
    parser.add_argument("url", metavar="URL", help="where the server offers the fixture: http://HOST:PORT/PREFIX")
    parser.add_argument("--mode", choices=MODES, metavar="MODE", help="leased or transactional (default: the server's)")
    parser.add_argument("--profile", choices=PROFILES, metavar="NAME", help=f"the terms of {', '.join(PROFILES)}")
    parser.add_argument(
        "--capabilities",
        metavar="FILE",
        type=Path,
        help="what the server supports, as JSON (default: its GET /fixture)",
    )
    _add_common(parser, "K1,K2,R8", 10.0)
    parser.set_defaults(run=run_http)


def _add_client(verbs: Any) -> None:
    parser = verbs.add_parser(
        "client",
        help="check how an HTTP client retries",
        description="Run a command against a server that settles and hangs up, delays, refuses and lies.",
    )
    parser.add_argument("--header", metavar="NAME", default=HEADER, help=f"where its key is (default: {HEADER})")
    _add_common(parser, "lost,reused", 60.0)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --, the client and its arguments")
    parser.set_defaults(run=run_client)


def _add_common(parser: argparse.ArgumentParser, rules: str, timeout: float) -> None:
    parser.add_argument("--only", metavar="IDS", help=f"only these rules: {rules} (default: all)")
    parser.add_argument(
        "--format", choices=_FORMATS, default="markdown", metavar="FORMAT", help="markdown (default), json or junit"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the report to FILE (default: standard output)"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=timeout,
        help=f"how long one step may take (default: {timeout:g})",
    )


def run_http(options: argparse.Namespace) -> int:
    """Check a server."""
    only = _checked(options)
    able = None if options.capabilities is None else _capabilities(options.capabilities)
    profile = None if options.profile is None else PROFILES[options.profile]
    report = run(options.url, able, mode=options.mode, profile=profile, only=only, timeout=options.timeout)
    return _told(report, options)


def run_client(options: argparse.Namespace) -> int:
    """Check a client."""
    only = _checked(options)
    report = clients.run_client(options.command, header=options.header, only=only, timeout=options.timeout)
    return _told(report, options)


def _checked(options: argparse.Namespace) -> list[str]:
    """The rules that are asked for, when the other options can be kept."""
    if options.timeout <= 0:
        raise ConfigurationError(f"--timeout {options.timeout:g}: give a number of seconds above 0")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {options.output}: the folder does not exist")
    return [part.strip() for part in (options.only or "").split(",") if part.strip()]


def _told(report: Report, options: argparse.Namespace) -> int:
    text = FORMATS[options.format](report)
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write(options.output, text)
        print(f"{report.address}: " + ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items()))
    return 0 if report.passed else 1


def _add_store(verbs: Any) -> None:
    parser = verbs.add_parser(
        "store",
        help="check a store",
        description="Put every case of the suite of stores to a store, by its sync and its async client. Give it a "
        "database of its own, which `retrysafe migrate` has made ready: the suite leaves records, and sweeps.",
    )
    parser.add_argument("url", metavar="URL", help="the store, as store= takes it")
    parser.set_defaults(run=run_store)


def run_store(options: argparse.Namespace) -> int:
    """Check a store."""
    made: list[Callable[[Backend], SyncHarness | AsyncHarness]] = [SyncHarness, AsyncHarness]
    failed = 0
    for colour, make in zip(("sync", "async"), made, strict=True):
        backend = connect(options.url)
        if not (backend.serves_sync if colour == "sync" else backend.serves_async):
            continue
        harness = make(backend)
        try:
            harness.do(backend.examination())
            for name, case in CASES.items():
                try:
                    case(Bench(harness, secrets.token_bytes(32)))
                except (AssertionError, RetrysafeError) as error:
                    failed += 1
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    print(f"{colour}: {name}: {where.line}: {str(error) or type(error).__name__}")
            print(f"{backend.address}, {colour}: {len(CASES)} cases, {failed} failed so far")
        finally:
            harness.close()
            forget(backend)
    return 1 if failed else 0


def _capabilities(path: Path) -> Capabilities:
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"--capabilities {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"--capabilities {path}: not JSON: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output {path}: {error.strerror or error}") from error
