"""The units of systemd, Compose and Kubernetes on the pages: systemd takes its own, the command line all commands."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrysafe.cli import module_of
from retrysafe.cli.worker import Health, _address
from retrysafe.protocol.durations import seconds

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
UNIT = re.compile(r"^```text\n# /etc/systemd/system/(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICES, JOBS = (dict(UNIT.findall((HOW_TO / page).read_text("utf-8"))) for page in ("run-as-services.md", "cron.md"))
UNITS = {**SERVICES, **JOBS}
CONTAINERS = {
    name: yaml.safe_load(text)
    for name, text in re.findall(
        r"^```text\n(?:# (\w+)\.yaml\n)?((?:x-worker|apiVersion|args):.*?)^```$",
        (HOW_TO / "run-as-services.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}
PROGRAM = "/srv/shop/.venv/bin/retrysafe"


def parsed(text: str) -> ConfigParser:
    """A unit, whose names have capital letters."""
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def test_the_pages_have_all_units() -> None:
    assert sorted(SERVICES) == ["retrysafe-inbox.service", "retrysafe-relay.service"]
    assert sorted(JOBS) == ["shop-backup.service", "shop-backup.timer"]


def test_the_command_line_takes_the_commands_of_a_job() -> None:
    _, _, script = shlex.split(parsed(JOBS["shop-backup.service"])["Service"]["ExecStart"])
    line = re.search(r"^17 2 .*?(retrysafe run .*)$", (HOW_TO / "cron.md").read_text("utf-8"), re.MULTILINE)
    assert line is not None
    for words in (shlex.split(script.removeprefix("exec ")), shlex.split(line[1])):
        parser = argparse.ArgumentParser()
        module_of("run").add_to(parser.add_subparsers())
        assert parser.parse_args(words[1:]).command == ["--", "/usr/local/bin/backup"]


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_line_takes_the_command_of_a_unit(name: str) -> None:
    unit = parsed(UNITS[name])
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program == PROGRAM
    assert float(unit["Service"]["TimeoutStopSec"]) > seconds(parse(words).stop_within, "")


def parse(words: list[str]) -> argparse.Namespace:
    """Let the command line read a worker's command."""
    parser = argparse.ArgumentParser()
    module_of(words[0]).add_to(parser.add_subparsers())
    return parser.parse_args(words)


def test_compose_asks_a_worker_whether_it_is_ready_and_lets_it_end() -> None:
    services: dict[str, Any] = CONTAINERS["compose"]["services"]
    assert services.pop("migrate")["command"] == ["retrysafe", "migrate"]
    assert sorted(services) == ["inbox", "relay"]
    for service in services.values():
        program, *words = service["command"]
        options = parse(words)
        assert program == "retrysafe"
        asked = re.search(r"urlopen\('http://127\.0\.0\.1:(\d+)/(\w+)'\)", service["healthcheck"]["test"][-1])
        assert asked is not None
        assert (int(asked[1]), asked[2]) == (_address(options.metrics)[1], Health.ready.__name__)
        assert seconds(service["stop_grace_period"], "") > seconds(options.stop_within, "")
        compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_kubernetes_probes_a_worker_and_lets_it_end() -> None:
    pod = CONTAINERS["relay"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    for program, *words in (container["args"], CONTAINERS[""]["args"]):
        options = parse(words)
        assert program == "retrysafe"
        host, port = _address(options.metrics)
        assert host == "0.0.0.0"
        for kind, path in (("livenessProbe", Health.live), ("readinessProbe", Health.ready)):
            assert container[kind]["httpGet"] == {"path": f"/{path.__name__}", "port": port}
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
        assert pod["spec"]["terminationGracePeriodSeconds"] > seconds(options.stop_within, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_a_unit(name: str, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd is not installed: the other tests parse the units")
    unit = tmp_path / name
    for other, text in UNITS.items():  # a timer needs its service
        (tmp_path / other).write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    done = subprocess.run(
        [verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if name in line]
    assert not ours, ours
