"""Alerts: their metrics and commands exist, and promtool fires each by its fault and none in a quiet hour."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

from retrysafe.cli import main
from retrysafe.observability.alerts import ALERTS, Alert, rules
from retrysafe.observability.metrics import COUNTERS, GAUGES
from retrysafe.observability.otel import _instruments_of
from tests.conftest import require
from tests.tables import each_row

LABELS = {"retrysafe.boundary": "b", "retrysafe.operation": "o"}
_WORD = re.compile(r"retrysafe_\w+")


@pytest.fixture
def exposed() -> Iterator[str]:
    """Yield Prometheus's reading when every metric has a value."""
    before = {*prometheus_client.REGISTRY._collector_to_names}
    provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    instruments = _instruments_of(provider)
    for counter in COUNTERS:
        instruments.add(counter.name, LABELS, "x" if counter.outcome or counter.field else "", "")
    for gauge in GAUGES:
        instruments._gauges[gauge].set(1, LABELS | ({f"retrysafe.{gauge.by}": "p"} if gauge.by else {}))
    instruments.store_duration.record(0.1, LABELS)
    yield prometheus_client.generate_latest().decode()
    for collector in {*prometheus_client.REGISTRY._collector_to_names} - before:
        prometheus_client.REGISTRY.unregister(collector)


def test_every_metric_and_label_of_a_condition_is_exposed(exposed: str) -> None:
    lines = [line for line in exposed.splitlines() if not line.startswith("#")]
    metrics = {line.partition("{")[0]: line for line in lines}
    for alert in ALERTS:
        words = {*_WORD.findall(alert.expr)}
        found = words & metrics.keys()
        assert found, alert.name
        labels = {label for name in found for label in re.findall(r"(\w+)=", metrics[name])}
        assert words - found <= labels, alert.name


def test_the_file_is_what_prometheus_reads() -> None:
    (group,) = yaml.safe_load("\n".join(rules()))["groups"]
    assert [one["alert"] for one in group["rules"]] == [alert.name for alert in ALERTS]
    for one, alert in zip(group["rules"], ALERTS, strict=True):
        assert (one["expr"], one["for"], one["labels"]) == (alert.expr, alert.hold, {"severity": alert.severity})
        assert one["annotations"]["command"] == alert.commands[0]
        assert one["annotations"]["runbook_url"].endswith(f"/reference/alerts/#{alert.name.lower()}")


@each_row("command", sorted({command for alert in ALERTS for command in alert.commands}))
def test_every_command_of_a_runbook_is_one(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RETRYSAFE_STORE", raising=False)
    _, *arguments = shlex.split(command.replace("WHY", "declined"))
    assert main(arguments) == 2  # argparse would raise SystemExit
    said = capsys.readouterr().err
    assert any(option in said for option in ("--store", "--journal", "--publish", "--client")), said
    if "WHY" in command:
        with pytest.raises(SystemExit):
            main(shlex.split(command)[1:])
        assert "write how you know in place of WHY" in capsys.readouterr().err


# ------------------------------------------------------------ promtool

APPEARS = "_x20 1+0x100"
RISES = "0+5x120"
FAULTS: dict[str, dict[str, str]] = {
    "RetrysafeOutcomesUnknown": {'retrysafe_unknown_total{retrysafe_boundary="b"}': APPEARS},
    "RetrysafeResultsNotStored": {'retrysafe_results_not_stored_total{retrysafe_boundary="b"}': APPEARS},
    "RetrysafeLeasesLost": {'retrysafe_lease_lost_total{retrysafe_boundary="b"}': "0+0x20 1+0x100"},
    "RetrysafeStoreFailing": {
        'retrysafe_claims_total{retrysafe_boundary="b",retrysafe_outcome="error"}': "0+1x120",
        'retrysafe_claims_total{retrysafe_boundary="b",retrysafe_outcome="claimed"}': "0+10x120",
    },
    "RetrysafeStoreSlow": {
        'retrysafe_store_duration_seconds_bucket{retrysafe_boundary="b",le="1"}': "0+1x120",
        'retrysafe_store_duration_seconds_bucket{retrysafe_boundary="b",le="5"}': "0+9x120",
        'retrysafe_store_duration_seconds_bucket{retrysafe_boundary="b",le="+Inf"}': "0+9x120",
    },
    "RetrysafeResultsUnreadable": {'retrysafe_unreadable_total{retrysafe_boundary="b"}': APPEARS},
    "RetrysafeKeysReused": {'retrysafe_mismatches_total{retrysafe_boundary="b"}': RISES},
    "RetrysafeRetryStorm": {
        'retrysafe_claims_total{retrysafe_boundary="b",retrysafe_outcome="replayed"}': "0+100x120",
        'retrysafe_replays_total{retrysafe_boundary="b"}': "0+90x120",
    },
    "RetrysafeSettingsWeak": {
        'retrysafe_warnings_total{retrysafe_boundary="b",retrysafe_outcome="store_warning"}': APPEARS
    },
    "RetrysafeDoctorFindings": {'retrysafe_doctor_findings{retrysafe_severity="error"}': "0+0x20 1+0x100"},
    "RetrysafeConflictsMany": {'retrysafe_conflicts_total{retrysafe_boundary="b"}': "0+10x120"},
    "RetrysafeNewKeysJump": {
        'retrysafe_claims_total{retrysafe_boundary="b",retrysafe_outcome="started"}': "0+60x25 1560+600x95",
    },
    "RetrysafeOutboxDeep": {"retrysafe_outbox_depth": "20000+0x120"},
    "RetrysafeConsumerBehind": {
        'retrysafe_inbox_lag{retrysafe_boundary="b",retrysafe_operation="o",retrysafe_partition="p"}': "5000+0x120",
    },
    "RetrysafeRunsStranded": {"retrysafe_runs_stranded": "0+0x20 1+0x100"},
    "RetrysafeOutboxLate": {"retrysafe_outbox_oldest_due_seconds": "0+10x120"},
    "RetrysafeRelayFailing": {'retrysafe_outbox_relay_failures_total{job="relay"}': RISES},
    "RetrysafeDestinationStalled": {
        'retrysafe_outbox_destination_stalls_total{retrysafe_outcome="broker"}': RISES,
    },
    "RetrysafeMessagesGivenUp": {'retrysafe_outbox_given_up_total{retrysafe_outcome="orders"}': APPEARS},
    "RetrysafeDeadLetters": {'retrysafe_inbox_dead_total{retrysafe_boundary="b",retrysafe_operation="o"}': APPEARS},
    "RetrysafeConsumerFailing": {
        'retrysafe_inbox_failures_total{retrysafe_boundary="b",retrysafe_operation="o"}': RISES,
    },
    "RetrysafeWebhooksRefused": {
        'retrysafe_webhooks_refused_total{retrysafe_boundary="b",retrysafe_outcome="bad-signature"}': RISES,
    },
    "RetrysafeClientGivesUp": {'retrysafe_client_given_up_total{retrysafe_outcome="budget"}': RISES},
}
"""By alert: series of a minute's step in which its fault happens at minute 20 or before."""


def test_every_alert_has_its_fault() -> None:
    assert FAULTS.keys() == {alert.name for alert in ALERTS}


@pytest.fixture
def promtool() -> str:
    """The tool that comes with Prometheus."""
    require("prometheus")
    return f"{os.environ['RETRYSAFE_TEST_PROMETHEUS']}/promtool"


def evaluated(promtool: str, folder: Path, series: dict[str, str], asked: list[dict[str, Any]]) -> str:
    """Evaluate the rules on these series; empty if what fires is what was expected."""
    (folder / "rules.yml").write_text("\n".join(rules()), encoding="utf-8")
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": asked,
            }
        ],
    }
    (folder / "test.yml").write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing(alert: Alert, minute: int, samples: int) -> dict[str, Any]:
    """So many series of the alert fire in this minute."""
    expr = f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})'
    expected = [{"labels": "{}", "value": samples}] if samples else []
    return {"expr": expr, "eval_time": f"{minute}m", "exp_samples": expected}


@pytest.mark.one_of("its fault fires an alert and no other does", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_its_fault_fires_an_alert_and_no_other_does(alert: Alert, promtool: str, tmp_path: Path) -> None:
    first = [firing(alert, 0, 0), firing(alert, 31 if alert.expr.count("15m") else 50, 1)]
    others = [firing(one, 50, 0) for one in ALERTS if one is not alert]
    assert evaluated(promtool, tmp_path, FAULTS[alert.name], first + others) == ""


@pytest.mark.slow
def test_a_quiet_hour_fires_nothing(promtool: str, tmp_path: Path) -> None:
    quiet = {name: "7+0x120" for series in FAULTS.values() for name in series}
    quiet['retrysafe_claims_total{retrysafe_boundary="b",retrysafe_outcome="claimed"}'] = "7+100x120"
    quiet['retrysafe_doctor_findings{retrysafe_severity="error"}'] = "0+0x120"
    quiet["retrysafe_runs_stranded"] = "0+0x120"
    asked = [firing(alert, minute, 0) for alert in ALERTS for minute in (70, 100)]
    assert evaluated(promtool, tmp_path, quiet, asked) == ""
