"""`retrysafe conformance`: check whether a server in any language keeps the HTTP contract, or a store its own.

The server has to offer the conformance fixture, about 60 lines: see the reference page "The conformance fixture".
Exit code: 0 if no rule failed; 1 if one did; 2 if the server or store could not be checked.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrysafe.cli.opening import add_verbs
from retrysafe.conformance.capabilities import MODES, Capabilities
from retrysafe.errors import ConfigurationError, RetrysafeError

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.testing.harness import AsyncHarness, SyncHarness

_FORMATS = ("markdown", "json", "junit")


def add_to(verbs: Any) -> None:
    """Add the verb and the verbs below it to the command line."""
    below = add_verbs(verbs, "conformance", "check whether a server or a store keeps its contract", __doc__)
    _add_http(below)
    _add_store(below)


def _add_http(verbs: Any) -> None:
    parser = verbs.add_parser(
        "http", help="check an HTTP server", description="Check an HTTP server, rule by rule, over real connections."
    )
    parser.add_argument("url", metavar="URL", help="where the server offers the fixture: http://HOST:PORT/PREFIX")
    parser.add_argument("--mode", choices=MODES, metavar="MODE", help="leased or transactional (default: the server's)")
    parser.add_argument("--only", metavar="IDS", help="only these rules: K1,K2,R8 (default: all)")
    parser.add_argument(
        "--capabilities",
        metavar="FILE",
        type=Path,
        help="what the server supports, as JSON (default: its GET /fixture)",
    )
    parser.add_argument(
        "--format", choices=_FORMATS, default="markdown", metavar="FORMAT", help="markdown (default), json or junit"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the report to FILE (default: standard output)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=10.0, help="how long one step may take (default: 10)"
    )
    parser.set_defaults(run=run_http)


def run_http(options: argparse.Namespace) -> int:
    """Check a server."""
    from retrysafe.conformance.report import FORMATS
    from retrysafe.conformance.running import run

    if options.timeout <= 0:
        raise ConfigurationError(f"--timeout {options.timeout:g}: give a number of seconds above 0")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {options.output}: the folder does not exist")
    only = [part.strip() for part in (options.only or "").split(",") if part.strip()]
    able = None if options.capabilities is None else _capabilities(options.capabilities)
    report = run(options.url, able, mode=options.mode, only=only, timeout=options.timeout)
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
    from retrysafe.backends.registry import connect, forget
    from retrysafe.testing.conformance import CASES, Bench
    from retrysafe.testing.harness import AsyncHarness, SyncHarness

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
    from retrysafe.conformance.capabilities import parse

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
