"""`retrysafe alerts`: rules for Prometheus, as YAML, a dashboard for Grafana, as JSON, or queries of PostgreSQL.

Each alert has its severity, the first command to paste and the address of its runbook. The rules, and the queries of
the dashboard, are for the metrics of `retrysafe.observability.otel.OpenTelemetryObserver` behind OpenTelemetry's
Prometheus exporter. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from retrysafe.cli.rendering import say
from retrysafe.observability.alerts import rules
from retrysafe.observability.dashboard import dashboard
from retrysafe.observability.postgresql_alerts import statements


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "alerts",
        help="alert rules for Prometheus, and a dashboard for Grafana",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--dashboard", action="store_true", help="a dashboard to import into Grafana, instead of rules")
    kinds.add_argument(
        "--sql", action="store_true", help="queries of PostgreSQL whose rows are alerts, for those who have no metrics"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the rules, or what was asked for instead."""
    if options.dashboard:
        say(json.dumps(dashboard(), indent=2).splitlines())
    else:
        say(statements() if options.sql else rules())
    return 0
