"""`retrysafe doctor`: find what is set up so that a promise is broken or weaker than it looks.

Asks stores and brokers, and reads the boundaries and routes of an application. Nothing is changed without --fix, each
store and broker has a limited time, and passwords are not printed. Exit code: 0 if there is no finding of the severity
that --fail-on names, or each is waived, 1 if there is one, 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

from retrysafe.admin import lock
from retrysafe.admin.describe import four_answers
from retrysafe.backends.commands import STORE
from retrysafe.cli import application
from retrysafe.cli.opening import PROJECT, import_module, load_object
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.rendering import as_json, lines, say
from retrysafe.doctor import registry
from retrysafe.doctor.diagnosing import diagnose, living_entries
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.doctor.stores import name_of, repair
from retrysafe.doctor.waivers import Waiver, read_waivers
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.protocol import durations
from retrysafe.protocol.checks import Severity

PAGES = "https://retrysafe.readthedocs.io/en/latest/"


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "doctor", "find what is set up wrongly", run, __doc__)
    add_option(parser, "--store URL...", f"a store; may be repeated (default: ${STORE})")
    add_option(parser, "--broker URL...", "a broker; may be repeated")
    add_option(
        parser,
        "--topic NAME[=BOUNDARY]...",
        "a topic or queue to look at there, and the boundary whose inbox consumes it; a NAME with = ends with one",
    )
    add_option(parser, "--app MODULE:APP", "an application; its boundaries and stores are examined")
    add_option(parser, "--lock FILE", "the lock file that --app is compared with")
    add_option(parser, "--settings MODULE", "Django's settings: the project is examined")
    add_option(parser, "--retried-for TIME", "for how long clients retry, as in 72h")
    add_option(parser, "--request-timeout TIME", "after how long a request ends, as in 30s")
    add_option(parser, "--within TIME", "for each store and broker", "5s")
    add_option(parser, "--waivers FILE", "TOML with [[waiver]] id, subject, reason and until")
    add_option(
        parser,
        "--fail-on",
        "the lowest severity that makes the exit code 1",
        Severity.WARNING.value,
        choices=[one.value for one in Severity],
    )
    add_option(parser, "--fix", "mend what can be mended safely under traffic")
    add_option(parser, "--list", "list the checks, and ask nothing")
    add_option(parser, "--json", "print JSON, one object per line")


def run(options: argparse.Namespace) -> int:
    if options.list:
        say(f"{check.id}: {check.asks}" for check in registry.every().values())
        return 0
    stores = options.store or [one for one in [_project_store(options) or os.environ.get(STORE)] if one]
    if not (stores or options.broker or options.app or options.settings):
        raise ConfigurationError(
            f"There is nothing to examine: give --store, --broker, --app or --settings, or {STORE}."
        )
    waivers = [] if options.waivers is None else read_waivers(options.waivers, registry.every())
    found = _diagnose(options, stores, waivers)
    if options.fix:
        for text in _repair_all(found, stores, durations.seconds(options.within, "--within")):
            say([text])
        found = _diagnose(options, stores, waivers)
    if options.json:
        say(as_json(one.as_json()) for one in found)
    else:
        say(_as_text(found))
        say(_answers() if options.app or options.settings or _project_store(options) else ())
    severities = tuple(Severity)
    worst = severities.index(Severity(options.fail_on))
    return int(any(one.waived is None and severities.index(one.severity) <= worst for one in found))


def _project_store(options: argparse.Namespace) -> Any:
    """The store of the Django project whose command this is; None in any other command line."""
    return getattr(options, "default_store", None)


def _diagnose(options: argparse.Namespace, stores: list[Any], waivers: list[Waiver]) -> list[Diagnosis]:
    app, drift = None, list[str]()
    settings = options.settings or (_project_store(options) and os.environ.get(PROJECT))
    if options.app:
        app = load_object("--app", options.app)
        if options.lock:
            module = sys.modules[options.app.partition(":")[0]]
            drift = [
                f"{one.where}: {one.text}."
                for one in lock.drift(lock.read(options.lock), application.lock_file(vars(module).values()))
            ]
    elif settings:
        app = _django(settings)
    given = [_topic(one) for one in options.topic]
    return diagnose(
        stores=stores,
        brokers=options.broker,
        topics=list(dict.fromkeys(topic for topic, _ in given)),
        consumed_by=_consumers_of(given),
        app=app,
        app_name=options.app or settings or "",
        retried_for=options.retried_for,
        request_timeout=options.request_timeout,
        drift=drift,
        waivers=waivers,
        within=options.within,
    )


def _topic(text: str) -> tuple[str, str]:
    """A topic, and the boundary whose inbox consumes it; empty where none was named."""
    name, _, boundary = text.rpartition("=") if "=" in text else (text, "", "")
    return name, boundary


def _consumers_of(given: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for topic, boundary in given:
        if boundary:
            found.setdefault(topic, []).append(boundary)
    return found


def _django(settings: str) -> Any:
    """A Django project; importing its URLs and middleware builds the boundaries of its views."""
    os.environ[PROJECT] = settings
    named = f"--settings {settings}"
    urls = import_module("django.urls", named)
    handler = import_module("django.core.handlers.base", named).BaseHandler()
    try:
        _ = urls.get_resolver().url_patterns
        handler.load_middleware()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{named}: {type(error).__name__}: {error}") from error
    return handler


def _repair_all(found: list[Diagnosis], stores: list[Any], within: float) -> Iterator[str]:
    """Run the repairs of the findings in stores that were given; tell what became of each."""
    by_name = {name_of(store): store for store in stores}
    for one in found:
        if not one.repair or one.subject not in by_name or one.waived is not None:
            continue
        try:
            repair(by_name[one.subject], one.repair, max(within, 3600.0))
        except (RetrysafeError, TimeoutError) as error:
            yield f"not fixed  {one.id}: {getattr(error, 'detail', None) or type(error).__name__}"
        else:
            yield f"fixed  {one.id}: {'; '.join(one.repair)}"


def _answers() -> Iterator[str]:
    """The answers of each boundary to the four questions."""
    for one in sorted(living_entries(), key=lambda entry: entry.name):
        yield ""
        yield from lines(four_answers(one.settings))


def _as_text(found: list[Diagnosis]) -> Iterator[str]:
    for one in found:
        level = "waived" if one.waived else one.severity.value
        yield f"{level:<8}{one.id}  {one.subject}"
        yield f"        {one.evidence}"
        yield f"        waived: {one.waived}" if one.waived else f"        fix: {one.fix}"
        yield f"        {PAGES}{one.page.removesuffix('.md')}/"
    if not found:
        yield "no finding"
