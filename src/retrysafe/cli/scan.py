"""`retrysafe scan`: operations in Python source that are not safe to retry.

The code is parsed, never imported or run. Exit code 0: nothing new was found; 1: something was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from retrysafe.cli.rendering import say
from retrysafe.errors import ConfigurationError
from retrysafe.scan import baseline, report
from retrysafe.scan.findings import Finding, Severity
from retrysafe.scan.rules.catalogue import EVERY_RULE
from retrysafe.scan.scanner import scan


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "scan",
        help="find code that is not safe to retry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", default=["."], help="files and folders (default: .)")
    parser.add_argument("--format", choices=("text", "json", "sarif"), default="text", help="(default: text)")
    parser.add_argument("--baseline", metavar="FILE", help="leave out the findings that are in FILE")
    parser.add_argument("--write-baseline", metavar="FILE", help="write all findings to FILE, and exit with 0")
    parser.add_argument("--exclude", metavar="GLOB", action="append", default=[], help="names or paths to leave out")
    parser.add_argument("--tests", action="store_true", help="scan tests too")
    parser.add_argument("--rule", metavar="ID", action="append", default=[], help="these rules only")
    parser.add_argument(
        "--fail-on",
        choices=[one.value for one in Severity],
        default=Severity.WARNING.value,
        help="the lowest severity that makes the exit code 1 (default: warning)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Scan, and print what is new."""
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
    each = ", ".join(f"{id_} {count}" for id_, count in sorted(counts.items()))
    parts = [f"{len(new)} findings in {files} files" + (f": {each}" if each else "")]
    parts += [f"{known} in the baseline"] if known else []
    parts += [f"{gone} of the baseline are gone: write it again"] if gone else []
    return "; ".join(parts)
