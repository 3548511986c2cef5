"""`retrysafe alerts`: rules for Prometheus, as YAML, a dashboard for Grafana, as JSON, or queries of PostgreSQL.

Each alert has its severity, the first command to paste and the address of its runbook. The rules, and the queries of
the dashboard, are for the metrics of `retrysafe.observability.otel.OpenTelemetryObserver` behind OpenTelemetry's
Prometheus exporter. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.rendering import say
from retrysafe.observability.alerts import rules
from retrysafe.observability.dashboard import dashboard
from retrysafe.observability.postgresql_alerts import statements


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "alerts", "alert rules for Prometheus, and a dashboard for Grafana", run, __doc__)
    kinds = parser.add_mutually_exclusive_group()
    add_option(kinds, "--dashboard", "a dashboard to import into Grafana, instead of rules")
    add_option(kinds, "--sql", "queries of PostgreSQL whose rows are alerts, for those who have no metrics")


def run(options: argparse.Namespace) -> int:
    if options.dashboard:
        say(json.dumps(dashboard(), indent=2).splitlines())
    else:
        say(statements() if options.sql else rules())
    return 0
