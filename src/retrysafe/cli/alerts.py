"""`retrysafe alerts`: rules for Prometheus, as YAML.

Each alert has its severity, the first command to paste and the address of its runbook. The rules are for the metrics of
`retrysafe.observability.otel.OpenTelemetryObserver` behind OpenTelemetry's Prometheus exporter. Exit code: 0.
"""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.cli.rendering import say
from retrysafe.observability.alerts import rules


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "alerts",
        help="rules for Prometheus: when somebody should look",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the rules."""
    say(rules())
    return 0
