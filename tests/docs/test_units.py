"""The units of systemd on the pages: systemd takes them, and the command line takes their commands."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from retrysafe.cli import module_of

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
UNIT = re.compile(r"^```text\n# /etc/systemd/system/(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICES, JOBS = (dict(UNIT.findall((HOW_TO / page).read_text("utf-8"))) for page in ("run-as-services.md", "cron.md"))
UNITS = {**SERVICES, **JOBS}
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
    parser = argparse.ArgumentParser()
    module_of(words[0]).add_to(parser.add_subparsers())
    options = parser.parse_args(words)
    assert float(unit["Service"]["TimeoutStopSec"]) > float(options.stop_within.removesuffix("s"))


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
