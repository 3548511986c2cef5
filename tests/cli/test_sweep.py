"""`retrysafe sweep`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe.backends.registry import connect
from retrysafe.cli import main
from tests.faults.helpers import DEADLINE, ROOT, driven, environment, fill, own_database, standing, until
from tests.processes import Program
from tests.tables import each_row

KINDS = ("sqlite", "psycopg", "asyncpg")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/records.db"
        connect(made)
        yield made
        return
    with own_database(request.getfixturevalue("postgresql"), partitions=2) as database:
        yield driven(database, request.param)


def test_it_goes_on_until_nothing_is_left(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, 25)
    fill(url, 5, "running")
    assert main(["sweep", "--store", url, "--batch", "10", "--pause", "1ms", "--limit", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], said["archived"], said["skipped"]) == (5, 0, [])
    assert main(["sweep", "--store", url, "--batch", "10", "--pause", "1ms"]) == 0
    assert capsys.readouterr().out.startswith("removed 20 records in ")
    assert main(["sweep", "--store", url]) == 0
    assert capsys.readouterr().out.startswith("removed 0 records in ")
    assert standing(url) == {"running": 5}


@pytest.mark.slow
def test_removed_records_are_in_the_archive(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, 25)
    archive = tmp_path / "archive.jsonl"
    options = ["--batch", "10", "--pause", "1ms", "--archive", str(archive)]
    assert main(["sweep", "--store", url, *options]) == 0
    assert capsys.readouterr().out.startswith("archived 25 and removed 25 records in ")
    assert len(archive.read_text().splitlines()) == 25
    fill(url, 1)
    assert main(["sweep", "--store", url, "--archive", str(tmp_path / "no folder" / "x")]) == 2
    assert "Records that were not archived were not removed" in capsys.readouterr().err
    assert standing(url) == {"completed": 1}


def test_partitions_are_rotated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, 50)
    code = main(["sweep", "--store", url, "--rotate", "--json"])
    said = capsys.readouterr()
    if url.startswith("sqlite"):
        assert code == 2
        assert "has no partitions to rotate" in said.err
    else:
        assert code == 0
        assert json.loads(said.out)["removed"] == 50


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("every", [[], ["--every", "1h"]])
def test_a_signal_ends_it_after_its_batch_with_a_summary(url: str, every: list[str], number: signal.Signals) -> None:
    """The first batch is followed by a rest of an hour, or by one until the next look."""
    fill(url, 15)
    batch = "10" if not every else "20"
    command = [sys.executable, "-m", "retrysafe", "sweep", "--store", url, "--batch", batch, "--pause", "1h", *every]
    pipe = subprocess.PIPE
    with Program(command, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        until(lambda: sum(standing(url).values()) == (5 if not every else 0))
        process.send_signal(number)
        out, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert "A second SIGTERM or SIGINT ends the process at once" in said
    assert out.startswith(f"removed {10 if not every else 15} records in ")


@each_row(
    ("options", "complaint"),
    [
        (["--limit", "0"], "--limit is a number from 1"),
        (["--limit", "5", "--every", "1h"], "cannot be combined with"),
        (["--batch", "0"], "batch= is a number"),
        (["--every", "often"], "every='often' is not a duration"),
        (["--rotate", "--archive", "x"], "no partitions"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(
    options: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--store", f"sqlite:///{tmp_path}/records.db", *options]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1
