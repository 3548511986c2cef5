"""`retrysafe scan`: operations in Python source that are not safe to retry.

The code is parsed, never imported or run. Exit code 0: nothing new was found; 1: something was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from retrysafe.cli.options import add_json_format, add_option, add_verb
from retrysafe.cli.rendering import say
from retrysafe.errors import ConfigurationError
from retrysafe.scan import baseline, report
from retrysafe.scan.findings import Finding, Severity
from retrysafe.scan.rules.catalogue import EVERY_RULE
from retrysafe.scan.scanner import scan


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "scan", "find code that is not safe to retry", run, __doc__)
    add_option(parser, "paths PATH", "files and folders (default: .)", ["."], nargs="*")
    add_option(parser, "--format", "(default: text)", "text", choices=("text", "json", "sarif"))
    add_json_format(parser)
    add_option(parser, "--baseline FILE", "leave out the findings that are in FILE")
    add_option(parser, "--write-baseline FILE", "write all findings to FILE, and exit with 0")
    add_option(parser, "--exclude GLOB...", "names or paths to leave out")
    add_option(parser, "--tests", "scan tests too")
    add_option(parser, "--rule ID...", "these rules only")
    add_option(
        parser,
        "--fail-on",
        "the lowest severity that makes the exit code 1 (default: warning)",
        Severity.WARNING.value,
        choices=[one.value for one in Severity],
    )


def run(options: argparse.Namespace) -> int:
    unknown = set(options.rule) - {one.id for one in EVERY_RULE}
    if unknown:
        raise ConfigurationError(f"--rule {min(unknown)}: there is no such rule.")
    known = baseline.load(options.baseline) if options.baseline else {}
    done = scan(options.paths, exclude=options.exclude, tests=options.tests)
    if not done.files:
        raise ConfigurationError(f"{', '.join(options.paths)}: there is no Python file to scan.")
    findings = [one for one in done.findings if not options.rule or one.rule.id in options.rule]
    if options.write_baseline:
        baseline.save(options.write_baseline, findings)
        print(f"{len(findings)} findings written to {options.write_baseline}", file=sys.stderr)
        return 0
    new = [one for one in findings if one.fingerprint not in known]
    _print(options.format, new)
    gone = len(known.keys() - {one.fingerprint for one in findings})
    told = sys.stdout if options.format == "text" else sys.stderr
    print(_summary(new, done.files, len(findings) - len(new), gone), file=told)
    return int(any(one.severity.rank <= Severity(options.fail_on).rank for one in new))


def _print(form: str, findings: list[Finding]) -> None:
    if form == "sarif":
        print(json.dumps(report.sarif(findings)))
    elif form == "json":
        say(json.dumps(report.data(one)) for one in findings)
    else:
        say(report.text(findings))


def _summary(new: list[Finding], files: int, known: int, gone: int) -> str:
    counts = Counter(one.rule.id for one in new)
    each = ", ".join(f"{count} of {id_}" for id_, count in sorted(counts.items()))
    parts = [f"{len(new)} findings in {files} files" + (f": {each}" if each else "")]
    parts += [f"{known} in the baseline"] if known else []
    parts += [f"{gone} of the baseline are gone: write it again"] if gone else []
    return "; ".join(parts)
