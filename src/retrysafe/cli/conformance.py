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
from functools import partial
from pathlib import Path
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect, forget
from retrysafe.cli.options import add_json_format, add_option, add_verb, add_verbs
from retrysafe.conformance import clients
from retrysafe.conformance.capabilities import MODES, Capabilities, parse
from retrysafe.conformance.profiles import PROFILES, SERVERS
from retrysafe.conformance.report import FORMATS, Report
from retrysafe.conformance.running import run
from retrysafe.errors import ConfigurationError
from retrysafe.http.key_header import HEADER
from retrysafe.protocol.records import EffectiveState
from retrysafe.testing import differential
from retrysafe.testing.conformance import CASES, Bench
from retrysafe.testing.harness import AsyncHarness, SyncHarness

_FORMATS = ("markdown", "json", "junit")


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "conformance", "check whether a server, a client or a store keeps its contract", __doc__)
    _add_http(below)
    _add_client(below)
    _add_store(below)


def _add_http(verbs: Any) -> None:
    parser = add_verb(
        verbs, "http", "check an HTTP server", run_http, "Check an HTTP server, rule by rule, over real connections."
    )
    add_option(parser, "url URL", "where the server offers the fixture: http://HOST:PORT/PREFIX")
    add_option(parser, "--mode MODE", "leased or transactional (default: the server's)", choices=MODES)
    add_option(parser, "--profile NAME", f"the terms of {' or '.join(SERVERS)}", choices=SERVERS)
    add_option(
        parser, "--capabilities FILE", "what the server supports, as JSON (default: its GET /fixture)", type=Path
    )
    _add_common(parser, "K1,K2,R8", 10.0)


def _add_client(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "client",
        "check how an HTTP client retries",
        run_client,
        "Run a command against a server that settles and hangs up, delays, refuses and lies.",
    )
    add_option(parser, "--header NAME", f"where its key is (default: {HEADER})", HEADER)
    add_option(parser, "--profile NAME", f"the terms of {', '.join(PROFILES)}", choices=PROFILES)
    _add_common(parser, "lost,reused", 60.0)
    add_option(parser, "command COMMAND", "after --, the client and its arguments", nargs="+")


def _add_common(parser: argparse.ArgumentParser, rules: str, timeout: float) -> None:
    add_option(parser, "--only IDS", f"only these rules: {rules} (default: all)")
    add_option(parser, "--format FORMAT", "markdown (default), json or junit", "markdown", choices=_FORMATS)
    add_json_format(parser)
    add_option(parser, "--output FILE", "write the report to FILE (default: standard output)", type=Path)
    add_option(parser, "--timeout SECONDS", f"how long one step may take (default: {timeout:g})", timeout, type=float)


def run_http(options: argparse.Namespace) -> int:
    only = _parse_rules(options)
    able = None if options.capabilities is None else _capabilities(options.capabilities)
    profile = None if options.profile is None else PROFILES[options.profile]
    report = run(options.url, able, mode=options.mode, profile=profile, only=only, timeout=options.timeout)
    return _print_report(report, options)


def run_client(options: argparse.Namespace) -> int:
    only = _parse_rules(options)
    terms = {"header": options.header, "profile": PROFILES.get(options.profile), "timeout": options.timeout}
    report = clients.run_client(options.command, only=only, **terms)
    return _print_report(report, options)


def _parse_rules(options: argparse.Namespace) -> list[str]:
    """The rules that are asked for, when the other options can be kept."""
    if options.timeout <= 0:
        raise ConfigurationError(f"--timeout {options.timeout:g}: give a number of seconds above 0")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {options.output}: the folder does not exist")
    return [part.strip() for part in (options.only or "").split(",") if part.strip()]


def _print_report(report: Report, options: argparse.Namespace) -> int:
    text = FORMATS[options.format](report)
    if options.output is None:
        sys.stdout.write(text)
    else:
        try:
            options.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--output {options.output}: {error.strerror or error}") from error
        print(f"{report.address}: " + ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items()))
    return 0 if report.passed else 1


def _add_store(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "store",
        "check a store",
        run_store,
        "Put every case of the suite of stores to a store, by its sync and its async client. Give it a "
        "database of its own, which `retrysafe migrate` has made ready: the suite leaves records, and sweeps.",
    )
    add_option(parser, "url URL", "the store, as store= takes it")


def run_store(options: argparse.Namespace) -> int:
    made: list[Callable[[Backend], SyncHarness | AsyncHarness]] = [SyncHarness, AsyncHarness]
    cases, failed = CASES | {f"every event at {one}": partial(_agree, one) for one in EffectiveState}, 0
    for colour, make in zip(("sync", "async"), made, strict=True):
        backend = connect(options.url)
        if not (backend.serves_sync if colour == "sync" else backend.serves_async):
            print(f"{backend.address}, {colour}: not served")
            continue
        harness = make(backend)
        try:
            harness.do(backend.examination())
            for name, case in cases.items():
                try:
                    case(Bench(harness, secrets.token_bytes(32)))
                except Exception as error:  # noqa: BLE001 - of a store that is under test, of any kind
                    failed += 1
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    print(f"{colour}: {name}: {where.line}: {str(error) or type(error).__name__}")
            known = backend.store.capabilities.tested_on
            before = f"; before this, it was tested on {known}" if known else ""
            print(f"{backend.address}, {colour}: {len(cases)} cases, {failed} failed so far{before}")
        finally:
            harness.close()
            forget(backend)
    return 1 if failed else 0


def _agree(standing: EffectiveState, bench: Bench) -> None:
    differential.check(bench.harness, standing)


def _capabilities(path: Path) -> Capabilities:
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"--capabilities {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"--capabilities {path}: not JSON: {error}") from error
